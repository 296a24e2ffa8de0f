"""Structures: what the masks let through is what a search through all readings finds, and what XGrammar takes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import GrammarRefused
from callboard.mailbox.messages.grammar import ContentOrCalls, StructureFormat, Tag, TagsFormat
from callboard.mailbox.messages.structures import (
    AnyText,
    ConstText,
    GrammarText,
    InOrder,
    OneOf,
    PatternText,
    Repeated,
    SchemaText,
    SeparatedTags,
    Tagged,
    TriggeredTags,
)
from callboard.structured_output.sizes import ensure_size
from callboard.tests.structured_output.structure_twin import as_xgrammar, is_text_of, structures, texts

OBJECT = SchemaText(json.dumps({"type": "object", "properties": {"k": {"type": "integer"}}, "required": ["k"]}))
NUMBER = SchemaText('{"type": "integer"}')
DIGITS = PatternText("[0-9]+")
CALL = Tagged("<f>", OBJECT, ("</f>",))
OTHER = Tagged("<fg>", DIGITS, ("</f>",))


def triggered(at_least_one=False, stop_after_first=False, excludes=()):
    return TriggeredTags(("<f",), (CALL, OTHER), at_least_one, stop_after_first, excludes)


CASES = [
    (ConstText("a b"), ["a b"], ["", "a", "a b "]),
    (InOrder((DIGITS, ConstText("1"))), ["11", "231"], ["1", "12"]),
    (InOrder((DIGITS, OBJECT)), ['12{"k": 1}'], ['{"k": 1}', '12{"k": "1"}']),
    (InOrder((Tagged("<think>", AnyText(), ("</think>",)), triggered())),
     ['<think>so <f></think>yes <f>{"k": 1}</f>!', "<think></think>"], ["so", "<think></think><f>", "<think>"]),
    (Tagged("<a>", AnyText(("q",)), ("</a>", "!")), ["<a>x</a>", "<a>!"], ["<a>!x</a>", "<a>q!", "<a>x"]),
    (Tagged("<a>", InOrder((ConstText("x"), triggered())), ("</a>",)),
     ["<a>x</a>", '<a>x so <f>{"k":1}</f> </a>'], ["<a>x</a></a>", "<a></a>", "<a>x <f></a>"]),
    (triggered(True), ['<f>{"k": 1}</f>', '<fg>1</f> so <f>{"k": 1}</f>'], ["", "so", "so <fg>1</f>"]),
    (triggered(False, True), ["", "so", "so <fg>1</f>"], ["<fg>1</f> so", "<f", "<fx"]),
    (triggered(True, True), ["<fg>1</f>"], ["", "x<fg>1</f>", "<fg>1</f>x"]),
    (triggered(excludes=("no",)), ["yes <fg>1</f>"], ["no", "<fg>1</f> no"]),
    (SeparatedTags((CALL, OTHER), ", ", False, False), ["", "<fg>1</f>", '<fg>1</f>, <f>{"k":1}</f>'], ["<fg>1</f>, "]),
    (SeparatedTags((CALL, OTHER), "", True, False), ["<fg>1</f><fg>1</f>"], ["", "<fg>1</f>, <fg>1</f>"]),
    (SeparatedTags((CALL, OTHER), ",", True, True), ["<fg>1</f>"], ["", "<fg>1</f>,<fg>1</f>"]),
    (OneOf((CALL, OTHER, ConstText("no"))), ['<f>{"k":1}</f>', "<fg>3</f>", "no"], ["", "<f>3</f>"]),
    (Repeated(CALL, 1, 2), ['<f>{"k":1}</f>', '<f>{"k":1}</f><f>{"k":2}</f>'], ["", '<f>{"k":1}</f>' * 3]),
    (InOrder((ConstText("<g>"), GrammarText('root ::= "a" root "b" | "x"'), ConstText("</g>"))),
     ["<g>aaxbb</g>", "<g>x</g>"], ["<g></g>", "<g>axbb</g>"]),
]  # fmt: skip


@pytest.mark.parametrize(("root", "good", "bad"), CASES)
def test_what_each_kind_takes(root, good, bad, compile_bytes, allows):
    grammar = compile_bytes(StructureFormat(root))
    for text in good:
        assert allows(grammar, text), text
    for text in bad:
        assert not allows(grammar, text), text


@pytest.mark.parametrize(
    ("root", "word"),
    [
        (InOrder((AnyText(), CALL)), "its end"), (InOrder((NUMBER, ConstText("1"))), "its end"),
        (InOrder((PatternText("a|a{b"), OBJECT)), "its end"), (Repeated(NUMBER, 0, None), "its end"),
        (InOrder((triggered(False, True), ConstText("x"))), "its end"),
        (OneOf((CALL, Tagged("<f>", DIGITS, ("</f>",)))), "which it is"),
        (OneOf((OBJECT, ConstText("{}x"))), "which it is"),
        (OneOf((OBJECT, GrammarText('start: "a"'))), "which it is"), (ConstText(""), "empty"),
        (TriggeredTags(("<f",), (Tagged("<g>", DIGITS, ("",)),), False, False, ()), "trigger"),
        (SchemaText('{"contains": {}}'), "contains"), (PatternText("("), "unclosed group"),
        (GrammarText("root ::= nope"), "nope"), (Tagged("<eos>", DIGITS, ("",)), "ends an answer"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_apart_or_is_wrong_is_refused(root, word, compile_bytes):
    with pytest.raises(GrammarRefused, match=word):
        compile_bytes(StructureFormat(root))


SEEN: Counter[str] = Counter()


@pytest.mark.slow
@given(root=structures(), some=st.lists(texts(), min_size=1, max_size=12), seed=st.integers(0, 9))
@settings(max_examples=120, deadline=None)
def test_a_search_through_all_readings_finds_the_same(root, some, seed, compile_bytes, allows, finished_answer):
    try:
        grammar = compile_bytes(StructureFormat(root))
    except GrammarRefused:
        SEEN["refused"] += 1
        return
    answer = None
    try:
        answer = finished_answer(grammar, seed)
    except GrammarRefused as refused:
        assert "no text" in refused.message
    if answer is not None and answer.isascii():
        SEEN["answers"] += 1
        some = [*some, answer.decode(), answer.decode()[:-1], answer.decode() + "x"]
    for text in some:
        if any(space in text for space in (" ", "\n", "\t", "\r")) and "Schema" in repr(root):
            continue  # the twin's values have no white space
        expected = is_text_of(root, text)
        SEEN["texts"] += expected
        assert allows(grammar, text) == expected, (text, expected)


@pytest.mark.slow
def test_the_search_has_seen_something():
    assert SEEN["texts"] > 50 and SEEN["answers"] > 30 and SEEN["refused"] < 110, SEEN


@pytest.mark.nightly  # importing it takes seconds
@given(root=structures(), some=st.lists(texts(), min_size=1, max_size=12))
@settings(max_examples=400, deadline=None)
def test_xgrammar_takes_the_same(root, some, compile_bytes, allows):
    xgrammar = pytest.importorskip("xgrammar")
    accepts = pytest.importorskip("xgrammar.testing")._is_grammar_accept_string
    try:
        grammar = compile_bytes(StructureFormat(root))
        other = xgrammar.Grammar.from_structural_tag({"type": "structural_tag", "format": as_xgrammar(root)})
    except (GrammarRefused, RuntimeError, ValueError):
        return
    for text in some:
        assert allows(grammar, text) == accepts(other, text), text


def test_marks_that_are_special_tokens(compile_bytes):
    mark = 258
    tag = Tagged("<|mark|>f<|mark|>", OBJECT, ("<|mark|>", "</f>"))
    grammar = compile_bytes(StructureFormat(TriggeredTags(("<|mark|>",), (tag,), False, False, ())))
    for text in ([*b"so ", mark, *b"f", mark, *b'{"k":1}', mark, *b" yes"], [mark, *b"f", mark, *b'{"k":1}</f>']):
        matcher = grammar.matcher()
        assert matcher.accept(text) == len(text) and matcher.may_end
    assert grammar.matcher().accept(list(b"<|mark|>")) < 8
    free = compile_bytes(StructureFormat(Tagged("", AnyText(), ("<|mark|>",)))).matcher()
    assert free.accept([*b"so", mark]) == 3 and free.is_complete


def test_a_structure_beside_calls_and_its_size(compile_bytes, allows):
    calls = TagsFormat((Tag("<call>", "{}", "</call>"),), at_least_one=True)
    grammar = compile_bytes(ContentOrCalls(StructureFormat(CALL), calls, "<call>"))
    assert allows(grammar, '<f>{"k":1}</f>') and allows(grammar, "<call>1</call>")
    with pytest.raises(GrammarRefused, match="may begin with"):
        compile_bytes(ContentOrCalls(StructureFormat(triggered()), calls, "<call>"))
    num_bytes = sum(len(text) for text in ("<f", "<f>", OBJECT.schema, "</f>", "<fg>", DIGITS.pattern, "</f>"))
    ensure_size(StructureFormat(triggered()), num_bytes)
    with pytest.raises(GrammarRefused, match="max_schema_bytes"):
        ensure_size(StructureFormat(InOrder((triggered(), ConstText("x")))), num_bytes)
