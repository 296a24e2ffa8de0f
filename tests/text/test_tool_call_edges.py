"""Tool calls that are cut off, malformed, unknown, or written otherwise than the family's form says."""

from __future__ import annotations

import json

import pytest

from callboard.tests.text.tool_call_texts import TOOLS, deltas_of, make_parser, read, write_calls
from callboard.text.tool_calls import DEFAULT_FAMILY, FAMILIES, Content, Tool

each_family = pytest.mark.parametrize("family", sorted(FAMILIES))


def both_ways(family: str, text: str, tools: list[Tool] = TOOLS) -> tuple[str, list[tuple[str, str]]]:
    """What is read of a text, at once and character by character."""
    got = read(family, [text], tools)
    assert read(family, text, tools) == got
    return got.content, got.calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<tool_call>", "<tool_call>", []),
        ('a\n<tool_call>{"name": "ru', 'a\n<tool_call>{"name": "ru', []),
        ('<tool_call>{"name": "run", "arguments": ', "", [("run", "")]),
        ('<tool_call>{"name": "run", "arguments": {"code": "a', "", [("run", '{"code": "a')]),
        ('<tool_call>{"name": "run", "arguments": {}', "", [("run", "{}")]),
        ('<tool_call>{"name": "run", "arguments": {}}\n</tool', "", [("run", "{}")]),
        ('<tool_call>{"arguments": {"code": "a', '<tool_call>{"arguments": {"code": "a', []),
    ],
)
def test_a_call_that_is_cut_off_keeps_what_had_come(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert both_ways("hermes", text) == (content, calls)


@pytest.mark.parametrize(
    ("end", "arguments"),
    [
        ("", ""),
        ("<parameter=co", ""),
        ("<parameter=code>\nab", '{"code": "ab'),
        ("<parameter=code>\nab\n</para", '{"code": "ab'),
        ("<parameter=code>\nab\n</parameter>\n", '{"code": "ab"'),
        ("<parameter=timeout>\n12", ""),
        ("<parameter=code>\nab\n</parameter>\n<parameter=timeout>\n12", '{"code": "ab"'),
        ("<parameter=code>\nab\n</parameter>\n</function>\n</tool", '{"code": "ab"}'),
    ],
)
def test_parameters_that_are_cut_off_leave_the_object_open(end: str, arguments: str) -> None:
    """Of a value that is no string nothing comes before it is whole: 12 may be the beginning of 120."""
    assert both_ways("qwen3_coder", "<tool_call>\n<function=run>\n" + end) == ("", [("run", arguments)])


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("null", "{}"),
        ('""', "{}"),
        ('"{\\"code\\": \\"\\u00e9\\"}"', '{"code": "é"}'),
        ('"text"', '"text"'),
        ("[1, 2]", "[1, 2]"),
        ("12", "12"),
        ('{"code": "a", }', '{"code": "a", }'),
        ("{'code': 'a'}", "{'code': 'a'}"),
        ('{ "code" :\n"a" }', '{ "code" :\n"a" }'),
        ('{"code": "\\\\"}', '{"code": "\\\\"}'),
    ],
)
def test_arguments_of_other_kinds(written: str, arguments: str) -> None:
    for family in ("hermes", "llama3", "mistral", "mistral_args", "deepseek_v31", "kimi_k2", "harmony"):
        assert both_ways(family, write_calls(family, [("run", written)]))[1] == [("run", arguments)], family


@pytest.mark.parametrize("family", ["kimi_k2", "harmony", "deepseek_v31"])
def test_no_arguments_at_all_are_an_empty_object(family: str) -> None:
    assert both_ways(family, write_calls(family, [("run", "")])) == ("", [("run", "{}")])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<tool_call>{"name": "run"}</tool_call>', [("run", "{}")]),
        ('<tool_call>{"name": "run", "parameters": {"code": "a"}}</tool_call>', [("run", '{"code": "a"}')]),
        ('<tool_call>{"name":"run","arguments":{"code":"a"},"id":{"x":"}"}}</tool_call>', [("run", '{"code":"a"}')]),
        ('<tool_call>{"id": 1, "name": "run", "arguments": {"code": "a"}}</tool_call>', [("run", '{"code": "a"}')]),
        ('<tool_call>{"name": "\\u0072un", "arguments": "{}"}</tool_call>', [("run", "{}")]),
        ('<tool_call>{"name": "run", "arguments": {"code": "a"}}}\n</tool_call>', [("run", '{"code": "a"}')]),
        ('<tool_call>{"name": "run", "arguments": {"code": "a"}</tool_call>', [("run", '{"code": "a"}')]),
        ('<tool_call>{"name": "run", "arguments": {"code": "a"</tool_call>', [("run", '{"code": "a"')]),
        (
            '<tool_call>{"type": "function", "function": {"name": "run", "arguments": {"a": [1]}}}</tool_call>',
            [("run", '{"a": [1]}')],
        ),
    ],
)
def test_objects_that_are_not_quite_the_form(text: str, calls: list[tuple[str, str]]) -> None:
    assert both_ways("hermes", text) == ("", calls)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"arguments": {"code": "\\ud83d"}, "name": "run"}', [("run", '{"code": "\\ud83d"}')]),
        ('{"arguments": {"code": "\\ud83d\\ude00é"}, "name": "run"}', [("run", '{"code": "😀é"}')]),
        ('{"name": "run", "arguments": "{\\"code\\": \\"\\ud83d\\"}"}', [("run", '"{\\"code\\": \\"\\ud83d\\"}"')]),
        ('{"name": "run", "arguments": {"code": "\\ud83d"}}', [("run", '{"code": "\\ud83d"}')]),
    ],
)
def test_half_of_a_surrogate_pair_stays_escaped(text: str, calls: list[tuple[str, str]]) -> None:
    """As a character it could not be sent."""
    assert both_ways("hermes", f"<tool_call>{text}</tool_call>") == ("", calls)
    assert all(arguments.encode() for _, arguments in calls)


def test_behind_what_only_looks_like_a_call_the_next_one_is_found() -> None:
    call = write_calls("hermes", [("run", "{}")])
    for before in (
        "<tool_call><tool_call",
        "<tool_call>[1]",
        '<tool_call>{"name": "x", "arguments": {}}</tool_call>',
        "<",
    ):
        assert both_ways("hermes", before + call) == (before, [("run", "{}")])


@each_family
def test_a_name_that_is_no_tools_is_content_and_calls_beside_it_stay(family: str) -> None:
    unknown = write_calls(family, [("running", '{"code": "a"}')])
    assert both_ways(family, unknown) == (unknown, [])
    content, calls = both_ways(family, write_calls(family, [("run", '{"code": "a"}'), ("runs", '{"code": "b"}')]))
    assert calls == [("run", '{"code": "a"}')]
    assert "runs" in content


@each_family
def test_spaces_beside_calls_are_no_content(family: str) -> None:
    call = write_calls(family, [("run", "{}")])
    assert both_ways(family, "\n\n" + call + " \n") == ("", [("run", "{}")])
    assert both_ways(family, " \n ") == (" \n ", [])
    if family not in ("llama3", "json"):
        content = "a" + "\n" * 100
        assert both_ways(family, content + call) == (content[:-64], [("run", "{}")])


@each_family
def test_a_beginning_that_leads_nowhere_is_content(family: str) -> None:
    for text in ("a <", "<tool_cal", "x\n<tool_call", "<tool_call>\n", "<tool_call>\n{", "a [TOOL_CALLS", "b "):
        assert both_ways(family, text) == (text, [])
        assert both_ways(family, text + "%") == (text + "%", [])


SCHEMA = {
    "$defs": {"Color": {"enum": ["red", "1"]}, "Point": {"type": "object"}},
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "number": {"type": ["number", "null"]},
        "flag": {"type": "boolean"},
        "color": {"$ref": "#/$defs/Color"},
        "point": {"allOf": [{"$ref": "#/$defs/Point"}]},
        "list": {"type": "array"},
        "any": {},
        "loop": {"$ref": "#/properties/loop"},
    },
}


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "12", "12"),
        ("text", "null", "null"),
        ("text", ' "a" ', ' "a" '),
        ("text", "", ""),
        ("text", "a\\n\u2028\x07é😀", "a\\n\u2028\x07é😀"),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "none", "none"),
        ("maybe", "12", "12"),
        ("number", "12", 12),
        ("number", " 1e3 ", 1000.0),
        ("number", "twelve", "twelve"),
        ("number", "NaN", "NaN"),
        ("number", "None", None),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", "yes", "yes"),
        ("color", "1", "1"),
        ("point", '{"x": [1, {"y": "}"}]}', {"x": [1, {"y": "}"}]}),
        ("point", "{'x': 1}", "{'x': 1}"),
        ("list", "[\n1,\n2\n]", [1, 2]),
        ("list", "[" * 100_000, "[" * 100_000),
        ("any", "12", 12),
        ("any", "True", "True"),
        ("any", '"a"', '"a"'),
        ("loop", "12", 12),
        ("unknown", "12", 12),
        ("unknown", "plain text", "plain text"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_have_the_types_of_the_schema(key: str, written: str, value: object) -> None:
    tool = Tool("f", json.dumps(SCHEMA).encode())
    for family in ("qwen3_coder", "glm"):
        text = write_calls(family, [("f", json.dumps({key: written}))])
        got = read(family, [text], [tool])
        assert [json.loads(arguments) for _, arguments in got.calls] == [{key: value}], family


@pytest.mark.parametrize("schema", [b"", b"[]", b"{", b'{"properties": 3}', b'{"properties": {"code": 3}}'])
def test_a_schema_that_says_nothing_allows_everything(schema: bytes) -> None:
    text = write_calls("glm", [("f", '{"code": "12"}')])
    assert both_ways("glm", text, [Tool("f", schema)]) == ("", [("f", '{"code": 12}')])


@each_family
def test_nothing_is_held_back_without_bound(family: str) -> None:
    """Behind 1,500 characters of whatever begins a call and is none, what came before them is out."""
    markers = FAMILIES[family].markers or ("{",)
    for filling in (" ", "a", "[", '"', "\n", *markers):
        parser = make_parser(FAMILIES[family])
        text = "x" + "".join(markers) + filling * (1500 // len(filling))
        deltas = [delta for character in text for delta in parser.feed(character)]
        assert len(text) - sum(len(delta.text) for delta in deltas if isinstance(delta, Content)) < 1000


@each_family
def test_a_long_text_of_beginnings(family: str) -> None:
    """Looking at the rest behind every one of them would take minutes."""
    marker = FAMILIES[family].markers[:1]
    text = "".join([*marker, '{"a": {']) * 2_000
    assert read(family, [text]) == read(family, [text[:7_777], text[7_777:]]) == read(family, [text], [])


@each_family
def test_a_long_answer_at_once(family: str) -> None:
    code = 'if (a["b"] < c) { d(); }\n' * 3_000
    text = ("" if family in ("llama3", "json") else code) + write_calls(family, [("run", json.dumps({"code": code}))])
    got = read(family, [text])
    assert got.content == ("" if family in ("llama3", "json") else code.rstrip())
    assert [json.loads(arguments) for _, arguments in got.calls] == [{"code": code}]


def test_the_family_for_models_without_a_form_is_one_that_is_read_anywhere_in_a_text() -> None:
    call = write_calls(DEFAULT_FAMILY.name, [("run", "{}")])
    assert both_ways(DEFAULT_FAMILY.name, "Text. " + call) == ("Text.", [("run", "{}")])
    assert deltas_of(DEFAULT_FAMILY.name, []) == []
