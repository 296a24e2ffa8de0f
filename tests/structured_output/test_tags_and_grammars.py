"""Tagged pieces such as tool calls, and grammars of clients."""

from __future__ import annotations

import json

import pytest

from callboard.actors.sandbox import checked
from callboard.errors import GrammarRefused
from callboard.mailbox.messages.grammar import (
    ChoiceFormat,
    Constraint,
    ContentOrCalls,
    GrammarFormat,
    JsonFormat,
    RegexFormat,
    Tag,
    TagsFormat,
)
from callboard.structured_output.sizes import compiled_bytes, ensure_size

CITY = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
EMPTY = json.dumps({"type": "object", "additionalProperties": False})
WEATHER = Tag('<tool>\n{"name": "w", "arguments": ', CITY, "}\n</tool>")
CLOCK = Tag('<tool>\n{"name": "c", "arguments": ', EMPTY, "}\n</tool>")
A_CALL = '<tool>\n{"name": "w", "arguments": {"city": "x </tool>"}}\n</tool>'
ANOTHER = '<tool>\n{"name": "c", "arguments": {}}\n</tool>'
LISTED = Tag('{"name": "c", "parameters": ', EMPTY, "}")


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (
            TagsFormat((WEATHER, CLOCK), triggers=("<tool>",)),
            ["", "hello <too", A_CALL, f"a {A_CALL} b", A_CALL + ANOTHER, f"<{ANOTHER}\n{A_CALL}"],
            ["<tool>", "a <tool> b", A_CALL + "<tool>", '<tool>\n{"name": "x"', A_CALL.replace('"x', "1")],
        ),
        (
            TagsFormat((WEATHER, CLOCK), triggers=("<tool>",), at_least_one=True, at_most_one=True),
            [A_CALL, f"so {ANOTHER} that"], ["", "hello", A_CALL + ANOTHER],
        ),
        (
            TagsFormat((WEATHER, CLOCK), separator="\n", at_least_one=True),
            [A_CALL, f"{A_CALL}\n{ANOTHER}"], ["", "a", A_CALL + ANOTHER, f"{A_CALL}\n", f" {A_CALL}"],
        ),
        (TagsFormat((CLOCK,), at_least_one=True, at_most_one=True), [ANOTHER], ["", ANOTHER + ANOTHER]),
        (TagsFormat((CLOCK,)), [ANOTHER, "", ANOTHER + ANOTHER], ["a"]),
        (
            TagsFormat((LISTED,), prefix="[", separator=", ", suffix="]", at_least_one=True),
            ['[{"name": "c", "parameters": {}}]', '[{"name": "c", "parameters": {}}, {"name": "c", "parameters": {}}]'],
            ["[]", '{"name": "c", "parameters": {}}', '[{"name": "c", "parameters": {}},]'],
        ),
        (
            TagsFormat((LISTED,), prefix="[CALLS]", triggers=("[CALLS]",)),
            ["", "hi", 'hi [CALLS]{"name": "c", "parameters": {}} there', "[CALLS"],
            ["[CALLS]", '[CALLS]{"name": "c", "parameters": {}} [CALLS]', "hi [CALLS] x"],
        ),
    ],
)  # fmt: skip
def test_pieces_and_the_text_around_them(form, good, bad, compile_bytes, allows):
    grammar = compile_bytes(form)
    for text in good:
        assert allows(grammar, text), text
    for text in bad:
        assert not allows(grammar, text), text


def test_markup_that_is_a_special_token(compile_bytes, mask_of, byte_vocabulary):
    mark = 258
    grammar = compile_bytes(TagsFormat((Tag("<|mark|>c<|mark|>", EMPTY, "<|mark|>"),), triggers=("<|mark|>",)))
    matcher = grammar.matcher()
    assert mark in mask_of(matcher, byte_vocabulary)
    tokens = [*b"so ", mark, *b"c", mark, *b"{}", mark, *b" yes", mark]
    assert matcher.accept(tokens) == len(tokens)
    assert mask_of(matcher, byte_vocabulary) == {ord("c")}
    assert grammar.matcher().accept(list(b"<|mark|>")) < 8  # in letters it is no mark, and no text


def test_what_ends_an_answer_is_no_part_of_one(compile_bytes, allows):
    assert allows(compile_bytes(TagsFormat((Tag("a", EMPTY, "<eos>"),), at_least_one=True)), "a{}")
    with pytest.raises(GrammarRefused, match="<eos>"):
        compile_bytes(TagsFormat((Tag("<eos>", EMPTY, ""),)))


PROPERTIES = {
    "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["C", "F"]},
    "when": {"type": "string", "format": "date"}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
    "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, "n": {"type": ["integer", "null"]},
    "code": {"type": "string", "pattern": "^[A-Z]{2}$"}, "any": {},
}  # fmt: skip
ARGUMENTS = json.dumps(
    {"type": "object", "properties": PROPERTIES, "required": ["city", "days"], "$defs": {"tag": {"type": "string"}}}
)


@pytest.mark.parametrize("style", ["qwen_xml", "glm_xml"])
@pytest.mark.parametrize(
    ("values", "is_valid"),
    [
        ({"city": 'San "F"\n<b>', "days": "3"}, True),
        ({"city": "x", "days": "0"}, False),
        ({"city": "x"}, False),
        ({"city": "", "days": "3", "unit": "F", "when": "2024-02-29", "tags": '["a", "b"]'}, True),
        ({"city": "x", "days": '"3"'}, False), ({"days": "3", "city": "x"}, False),
        ({"city": "x", "days": "3 "}, False),
        ({"city": "x", "days": "3", "unit": "K"}, False), ({"city": "x", "days": "3", "when": "2023-02-29"}, False),
        ({"city": "x", "days": "3", "tags": "[1]"}, False), ({"city": "x", "days": "3", "other": "1"}, False),
        ({"city": "x", "days": "3", "note": "null", "n": "null"}, True),
        ({"city": "x", "days": "3", "note": "abcd"}, False),
        ({"city": "x", "days": "3", "n": "x"}, False), ({"city": "x", "days": "3", "code": "AB", "any": "{a"}, True),
        ({"city": "x", "days": "3", "code": "ABC"}, False),
    ],
)  # fmt: skip
def test_arguments_in_tags(style, values, is_valid, compile_bytes, allows):
    pair = {
        "qwen_xml": "<parameter={}>\n{}\n</parameter>\n",
        "glm_xml": "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
    }[style]
    grammar = compile_bytes(TagsFormat((Tag("<f>\n", ARGUMENTS, "</f>", style),), at_least_one=True))
    body = "".join(pair.format(name, value) for name, value in values.items())
    assert allows(grammar, f"<f>\n{body}</f>") == is_valid


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "array"}, "object"), ({"anyOf": [{}]}, "anyOf"), ({"required": ["a"]}, "'a'"),
        ({"properties": {"a>b": {}}}, "a>b"), ({"properties": {"a": {"type": "string", "format": "uri"}}}, "uri"),
        ({"minProperties": 1}, "minProperties"),
        ({"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "anchors"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_in_tags_is_refused(schema, word, compile_bytes):
    with pytest.raises(GrammarRefused, match=word):
        compile_bytes(TagsFormat((Tag("<f>", json.dumps(schema), "</f>", "qwen_xml"),)))


@pytest.mark.parametrize(
    "form",
    [TagsFormat(()), TagsFormat((CLOCK,), triggers=("<call>",)), TagsFormat((CLOCK,), prefix="[", triggers=("<tool>",)),
     TagsFormat((CLOCK,), triggers=("",)), TagsFormat((Tag("<f>", "5", ""),))],
)  # fmt: skip
def test_tags_that_do_not_fit_are_refused(form, compile_bytes):
    with pytest.raises(GrammarRefused):
        compile_bytes(form)


CALLS = TagsFormat((WEATHER, CLOCK), separator="\n", at_least_one=True)


def test_content_or_calls(compile_bytes, allows):
    """Also where the beginnings of both are the same text for a while."""
    for content, good, bad in (
        (JsonFormat(CITY), '{"city": "<tool>"}', '{"city": 1}'),
        (RegexFormat("<[a-z]+>?"), "<tool", "<>"),
        (ChoiceFormat(("<tool", "<", "<tool>")), "<", "tool"),
        (GrammarFormat('start: "<" NAME ">x"\nNAME: /[a-z]+/'), "<tool>x", "<tool>"),
        (TagsFormat((LISTED,), at_least_one=True), '{"name": "c", "parameters": {}}', "{}"),
    ):
        grammar = compile_bytes(ContentOrCalls(content, CALLS, "<tool>\n"))
        for text in (good, A_CALL, f"{A_CALL}\n{ANOTHER}"):
            assert allows(grammar, text), (content, text)
        for text in (bad, "", A_CALL + good, f"{A_CALL}\n", good + A_CALL, A_CALL.replace('"x', "1")):
            assert not allows(grammar, text), (content, text)


def test_content_behind_markup_or_calls(compile_bytes):
    mark = 258
    for content in (JsonFormat(CITY), RegexFormat('{.*"}'), GrammarFormat('start: "{" /[^}]+/ "}"'), CALLS):
        grammar = compile_bytes(ContentOrCalls(content, CALLS, "<call>", content_begin="<|mark|>final<|mark|>"))
        text = A_CALL if content is CALLS else '{"city": "x"}'
        tokens = [mark, *b"final", mark, *text.encode()]
        for answer in (tokens, list(A_CALL.encode())):
            matcher = grammar.matcher()
            assert matcher.accept(answer) == len(answer) and matcher.may_end
        assert content is CALLS or grammar.matcher().accept(list(text.encode())) == 0


@pytest.mark.parametrize(
    ("content", "mark"),
    [
        (RegexFormat("[^%]*"), "<tool>"), (RegexFormat("[^b]+"), "<|mark|>"), (ChoiceFormat(("a", "<tool>")), "<tool>"),
        (GrammarFormat('start: "\\n" x\nx: /<t.*/'), "<tool>"), (CALLS, "<tool>\n"),
        (TagsFormat((Tag("<|mark|>", EMPTY, ""),), at_least_one=True), "<|mark|>"),
    ],
)  # fmt: skip
def test_content_that_would_be_read_as_a_call_is_refused(content, mark, compile_bytes):
    with pytest.raises(GrammarRefused, match="may begin with"):
        compile_bytes(ContentOrCalls(content, CALLS, mark))


def test_what_is_wrong_with_either_is_said(compile_bytes):
    broken = TagsFormat((Tag("<f>", '{"contains": {}}', ""),), at_least_one=True)
    with pytest.raises(GrammarRefused, match=r"^tools: .*contains"):
        compile_bytes(ContentOrCalls(JsonFormat("{}"), broken, "<f>"))
    with pytest.raises(GrammarRefused, match=r"^#: contains"):
        compile_bytes(ContentOrCalls(JsonFormat('{"contains": {}}'), CALLS, "<f>"))
    form = ContentOrCalls(JsonFormat("é" * 5), TagsFormat((Tag("a", "b", "c"),)), "a")
    ensure_size(form, 13)
    with pytest.raises(GrammarRefused, match="max_schema_bytes"):
        ensure_size(form, 12)


JSON_EBNF = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws   # with escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "a" B*\nB: /[0-9]/ | "é"', ["a", "a1é2"], ["", "b", "1"]),
        ('?start: expr\nexpr: expr "+" term | term\nterm: NUM | "(" expr ")"\nNUM: /[0-9]+/\n%ignore /[ ]{1,3}/',
         ["1", "1 + (2+3)"], ["1+", "(1"]),
        ('start: %json {"type": "integer"} "x" // <comment> max_tokens=3\n# stop="x"', ["5x", "-12x"], ["5", "x"]),
        ('start: "<|mark|>" /[<>=]+/ "::="', ["<|mark|><=>::="], ["<|mark|>::="]),
        ('root ::= "a" b* [0-9]+ | c?\nb ::= "x" | [^y]\nc ::= ("q" "\\n"){2,3}',
         ["axz9", "q\nq\n", ""], ["ay9", "q\n"]),
        ('root ::= "\\u00e9" [\\u00e0-\\u00ef]+ "\\u0041"', ["ééA"], ["eA"]),
        (JSON_EBNF, ['{"a": [1, "b\\n", true]}', "{}"], ['{"a" 1}', "[1]", '{"a": "\n"}']),
    ],
)  # fmt: skip
def test_grammars_of_clients(grammar, good, bad, compile_bytes, allows):
    compiled = compile_bytes(GrammarFormat(grammar))
    for text in good:
        assert allows(compiled, text), text
    for text in bad:
        assert not allows(compiled, text), text


@pytest.mark.parametrize(
    ("grammar", "word"),
    [
        ('start: "a" b', "b"), ('root ::= "a" nope', "nope"), ('root ::= "a', "end of input"), ("", "start"),
        ('start: <|mark|> "a"', "special token"), ("start: <[258]>", "special token"),
        ('start[max_tokens=3]: /a*/', "max_tokens"), ('start[stop="x"]: /a*/', "stop"), ('rule ::= "a"', "root"),
        ('%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "llguidance"), ("start: %json {", "JSON"),
        ('start: %json {"contains": {}}', "contains"),
        ('start: %json {"x-guidance": {"lenient": true}, "not": {}}', "not"),
        ('root ::= "\\ud800"', "character"), ("start: /(/", "regex"), ("start: @other", "other"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_grammar_is_said(grammar, word, compile_bytes):
    with pytest.raises(GrammarRefused, match=word):
        compile_bytes(GrammarFormat(grammar))


@pytest.mark.parametrize(
    "grammar", ['start: start "a"', "root ::= root", "start: A\nA: /a/ & /b/", 'start: "a" B\nB: /a/ & /b/']
)
def test_a_grammar_without_a_text_is_said_to_be_one(grammar, byte_backend, byte_vocabulary):
    refusal = checked(byte_backend, byte_vocabulary, Constraint(GrammarFormat(grammar)))
    assert refusal in ("the grammar allows no text at all", "the grammar allows no text behind what stands there")


def test_a_larger_description_takes_more_memory():
    small, large = JsonFormat("{}"), ContentOrCalls(JsonFormat("x" * 1000), CALLS, "a")
    assert 10_000 < compiled_bytes(small) < 1_000_000
    assert compiled_bytes(large) > compiled_bytes(small) + 1000 * 40


def test_sizes():
    ensure_size(JsonFormat("é" * 5), 10)
    for form in (JsonFormat("é" * 6), TagsFormat((CLOCK,))):
        with pytest.raises(GrammarRefused, match=r"limit is 10 \(max_schema_bytes\)"):
            ensure_size(form, 10)
