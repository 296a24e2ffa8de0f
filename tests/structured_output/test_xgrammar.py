"""The other backend: it takes less, and lets nothing through either."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from callboard.errors import ConfigError, GrammarRefused
from callboard.mailbox.messages.grammar import (
    ChoiceFormat,
    Constraint,
    GrammarFormat,
    JsonFormat,
    ReasoningGate,
    RegexFormat,
    Tag,
    TagsFormat,
)
from callboard.structured_output import backends
from callboard.structured_output.backends import make_backend

pytestmark = pytest.mark.nightly  # importing it takes seconds
EOS, MARK = 256, 258


@pytest.fixture(scope="module")
def backend(byte_vocabulary):
    pytest.importorskip("xgrammar")
    return make_backend("xgrammar", byte_vocabulary)


def test_no_invalid_instance_gets_through(all_schema_cases, backend, allows):
    num_taken = num_valid = 0
    for case in all_schema_cases:
        try:
            grammar = backend.compile(Constraint(JsonFormat(json.dumps(case["schema"]))))
        except GrammarRefused:
            continue
        assert case["compile"] != "error"
        num_taken += 1
        num_valid += sum(allows(grammar, json.dumps(value)) for value in case["valid"])
        invalid = [json.dumps(value["v"], ensure_ascii=False) for value in case["invalid"]] + case["invalid_text"]
        assert not any(allows(grammar, text) for text in invalid), case["id"]
    assert num_taken > 100 and num_valid > 200


@pytest.mark.parametrize("pattern", ["a", "(a|b)*c", "[ab]{2,3}", "a?b+", "x|ab"])
def test_expressions(pattern, backend, allows):
    grammar = backend.compile(Constraint(RegexFormat(pattern)))
    for size in range(4):
        for text in map("".join, itertools.product("abcx", repeat=size)):
            assert allows(grammar, text) == bool(re.fullmatch(pattern, text)), text


def test_the_laws_of_matchers(backend, mask_of, byte_vocabulary):
    gate = ReasoningGate("<|mark|>", "</think>", False)
    for form in (
        ChoiceFormat(("true", 'k>x"\\\\')),
        GrammarFormat('root ::= "a" root? "b"'),
        JsonFormat('{"type":"integer"}'),
    ):
        matcher = backend.compile(Constraint(form, gate)).matcher()
        fresh = mask_of(matcher, byte_vocabulary)
        assert MARK in fresh and not any(byte_vocabulary.tokens[i] == b"" for i in fresh)
        for token_id in range(-1, byte_vocabulary.vocab_size + 1):
            assert matcher.num_valid([token_id]) == (token_id in fresh)
        assert matcher.accept([MARK, *b"so", 260]) == 4
        behind = mask_of(matcher, byte_vocabulary)
        assert behind == fresh - {MARK}
        matcher.rollback(0)
        assert mask_of(matcher, byte_vocabulary) == fresh
    matcher = backend.compile(Constraint(ChoiceFormat(("true",)))).matcher()
    assert matcher.accept([259, EOS, EOS, 97]) == 3 and matcher.is_complete
    assert mask_of(matcher, byte_vocabulary) == {256, 257}


@pytest.mark.parametrize(
    ("form", "word"),
    [
        (TagsFormat((Tag("a", "{}", "b"),)), "tags"), (GrammarFormat('start: "a"'), "Lark"),
        (JsonFormat('{"type":"string","pattern":"a","minLength":2}'), "minLength|pattern"),
        (JsonFormat('{"type":"integer","multipleOf":2}'), "multipleOf"), (JsonFormat('{"minLength":2}'), "minLength"),
        (RegexFormat("(?=a)"), "looking"), (GrammarFormat('root ::= "a" nope'), "XGrammar"),
    ],
)  # fmt: skip
def test_what_it_does_not_hold_to_is_refused_by_name(form, word, backend):
    with pytest.raises(GrammarRefused, match=word):
        backend.compile(Constraint(form))


def test_a_backend_that_is_not_installed_is_said(byte_vocabulary, monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install xgrammar"):
        make_backend("xgrammar", byte_vocabulary)
