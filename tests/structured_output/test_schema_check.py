"""What is said of a JSON schema before it is compiled; `jsonschema` knows what is malformed, and what an answer is."""

from __future__ import annotations

import contextlib
import copy
import json
import re

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from callboard.errors import GrammarRefused
from callboard.mailbox.messages.grammar import JsonFormat
from callboard.structured_output.json_text import MAX_INDENTATION, MAX_SPACES
from callboard.structured_output.schema_check import MAX_DEPTH, checked_schema

ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        # X01: malformed
        ({"type": "strin"}, "type"), ({"type": "object", "properties": {"foo": "bar"}}, "properties"),
        ({"$ref": "#/nope"}, "$ref"), ({"type": "string", "pattern": "[.*"}, "pattern"),
        ({"required": "a", "type": "object"}, "required"), ({"type": "string", "minLength": -1}, "minLength"),
        ({"enum": []}, "enum"), (False, "false"), ({"anyOf": []}, "anyOf"), ({"type": "array", "items": 5}, "items"),
        ({"$ref": "http://example.invalid/s.json"}, "$ref"),
        ({"properties": {"x/y": {"type": 5}}}, "#/properties/x~1y"),
        ({"$defs": {"a": {"minimum": "1"}}}, "minimum"), ({"type": ["string", "string"]}, "type"),
        ({"required": ["a", "a"]}, "required"), ({"items": []}, "items"),
        ({"multipleOf": 0}, "multipleOf"), ({"type": []}, "type"),
        # X16: nothing satisfies it
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum 5"),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "no integer"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"type": "array", "minItems": 2, "maxItems": 1}, "minItems"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "nsatisf"), ({"$ref": "#"}, "satisfied"),
        (ENDLESS, "satisfied"), ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "satisfied"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "satisfied"),
        ({"anyOf": [False, ENDLESS | {"$id": "x"}]}, "satisfied"), ({"type": "string", "enum": [1]}, "nsatisf"),
        # What no grammar is made of
        ({"not": {}}, "not"), ({"if": {}, "then": {"type": "null"}}, "if"), ({"uniqueItems": True}, "uniqueItems"),
        ({"contains": {}}, "contains"), ({"propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"), ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"dependencies": {"a": ["b"]}, "$schema": "http://json-schema.org/draft-07/schema#"}, "dependencies"),
        ({"dependentRequired": {"a": []}, "$dynamicRef": "#a"}, "$dynamicRef"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"), ({"unevaluatedItems": False}, "unevaluatedItems"),
        ({"properties": {"a": {"items": {"not": {}}}}}, "#/properties/a/items: not"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, "#/$defs/a: not"),
        ({"type": "string", "format": "regex"}, "format"), ({"const": 2**63}, "const"), ({"const": 2**53 + 1}, "const"),
        ({"enum": [{"a": [2**53 + 1]}]}, "enum"), ({"type": "integer", "maximum": 1e300}, "maximum"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"), ({"pattern": "(?=a)"}, "pattern"),
        ({"exclusiveMinimum": True, "$schema": "https://json-schema.org/draft/2020-12/schema"}, "exclusiveMinimum"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_and_where(schema, words, compile_bytes):
    with pytest.raises(GrammarRefused, match=re.escape(words)) as caught:
        compile_bytes(schema)
    assert caught.value.status == 400 and len(caught.value.message) < 500


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '"a"', "{'a': 1}", '{"a": NaN}', "[" * 5000, '{"a":' * 5000])
def test_what_is_no_schema_at_all_is_refused(text, compile_bytes):
    with pytest.raises(GrammarRefused, match="schema"):
        compile_bytes(JsonFormat(text))


def test_sizes_are_bounded(compile_bytes):
    deep: object = {"type": "null"}
    for _ in range(MAX_DEPTH):
        deep = {"items": deep}
    with pytest.raises(GrammarRefused, match="deeper"):
        compile_bytes(deep)
    with pytest.raises(GrammarRefused, match="20,000 schemas"):
        compile_bytes({"anyOf": [{"minLength": i} for i in range(20_001)]})


SAYS_NOTHING = [
    {"uniqueItems": False}, {"if": {"type": "null"}}, {"then": False}, {"minContains": 2}, {"propertyNames": True},
    {"dependentRequired": {}}, {"unevaluatedProperties": True}, {"not": False}, {"contentSchema": {}},
    {"x-unknown": {"not": {}}}, {"$defs": {"a": {"not": {}}}}, {"title": "t", "default": {"not": {}}},
    {"x-guidance": {"lenient": True}}, {"minItems": 0.0}, {"dependencies": {"a": [], "b": True}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SAYS_NOTHING)
def test_keywords_that_say_nothing_are_no_obstacle(schema, compile_bytes, allows):
    grammar = compile_bytes(schema)
    assert all(allows(grammar, text) for text in ('"a"', "[1, 1]", '{"a": 1}', "null"))
    assert not allows(grammar, "nul") and not allows(grammar, "{a}")


def test_options_of_the_backend_are_not_the_clients(compile_bytes):
    with pytest.raises(GrammarRefused, match="not"):
        compile_bytes({"x-guidance": {"lenient": True}, "not": {"type": "null"}})


def test_what_has_no_finite_value_is_not_offered(compile_bytes, allows, mask_of, byte_vocabulary):
    schema = {
        "$defs": {"endless": ENDLESS | {"properties": {"a": {"$ref": "#/$defs/endless"}}}},
        "type": "object",
        "properties": {
            "x": {"$ref": "#/$defs/endless"},
            "y": {"anyOf": [{"$ref": "#/$defs/endless"}, {"type": "null"}]},
        },
        "additionalProperties": False,
    }
    grammar = compile_bytes(schema)
    assert allows(grammar, "{}") and allows(grammar, '{"y":null}')
    matcher = grammar.matcher()
    assert matcher.accept(list(b'{"')) == 2
    assert mask_of(matcher, byte_vocabulary) == {ord("y")}


def test_a_recursion_that_can_end_is_no_obstacle(compile_bytes, allows):
    tree = {"type": "object", "properties": {"v": {"type": "integer"}, "l": {"type": "array", "items": {"$ref": "#"}}}}
    assert allows(compile_bytes(tree), '{"v":1,"l":[{"v":2},{"l":[]}]}')


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "2023-12-31"], ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01"]),
        ("time", ["12:00:00Z", "23:59:59.5+01:00"], ["23:59:60Z", "24:00:00Z", "12:00:00"]),
        ("date-time", ["2024-02-29T00:00:00Z"], ["2023-02-29T00:00:00Z", "2024-02-29T00:00:60Z"]),
        ("ipv4", ["1.2.3.4"], ["256.1.1.1"]), ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
        ("email", ["a@b.example"], ["a"]),
    ],
)  # fmt: skip
def test_formats_hold(form, good, bad, compile_bytes, allows):
    grammar = compile_bytes({"type": "string", "format": form})
    assert all(allows(grammar, json.dumps(text)) for text in good)
    assert not any(allows(grammar, json.dumps(text)) for text in bad)


def test_x05_named_properties_keep_their_types(compile_bytes, allows):
    grammar = compile_bytes({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True})
    assert allows(grammar, '{"a":1,"b":"x"}')
    for text in ('{"a":"wrong"}', '{"a":1,"a":"x"}', r'{"\u0061":"wrong"}', '{"b":1,"a":"x"}'):
        assert not allows(grammar, text)


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": -5}, {"minimum": 2}, {"maximum": -4}, {"minimum": 1, "maximum": 5}, {"minimum": 0, "maximum": 0},
        {"minimum": -12, "maximum": 345}, {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"minimum": 1e2, "maximum": 1e3},
        {"minimum": 0.5, "maximum": 2.25}, {"minimum": -0.3, "maximum": 0.3}, {"multipleOf": 0.25}, {"multipleOf": 3},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_x07_bounds_of_numbers(kind, bounds, compile_bytes, allows):
    schema = {"type": kind, **bounds}
    try:
        grammar = compile_bytes(schema)
    except GrammarRefused as refused:
        assert "integer" in refused.message and kind == "integer" and not any(map(float.is_integer, (0.5, 0.25)))
        return
    near = {value + step for value in bounds.values() for step in (0, 1, -1, 0.1, -0.1, 0.25)} | {0, 5.7, 12, -7, 100}
    for value in near:
        text = str(int(value)) if float(value).is_integer() else repr(round(value, 3))
        got, expected = allows(grammar, text), jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
        assert got == expected or (expected and "multipleOf" in bounds), text  # 0.5 has to be written as 0.50 then
    assert not any(allows(grammar, text) for text in ("01", "+1", "1.", ".5", "", "-", "1e", "--1"))


@pytest.mark.parametrize("schema", [{"type": "string"}, {}])
def test_x15_texts_of_strings(schema, compile_bytes, allows):
    grammar = compile_bytes(schema)
    good = [r'"\u00e9"', r'"\ud83e\udee0"', '"🫠"', r'"\u007f"', r'"\n\"\\"', '""', '"é"']
    assert all(allows(grammar, text) for text in good)
    bad = [b'"\n"', b'"\x01"', rb'"\x41"', rb'"\u12"', rb'"\uD800"', b'"\xc0\x80"', b'"\xed\xa0\x80"']
    bad += [b'"\xf5\x80\x80\x80"', b'"\xff"', b'"', b"'a'"]
    assert not any(allows(grammar, text) for text in bad)


def test_x09_white_space_is_bounded(compile_bytes, allows):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    for grammar in (compile_bytes(schema), compile_bytes({"type": "object"})):
        most = " \r\n" + " " * MAX_INDENTATION
        assert len(most) == MAX_SPACES <= 64
        for space in ("", " ", "  ", "\t", "\n", " \n\t\t", most):
            assert allows(grammar, f'{{{space}"a"{space}:{space}1{space}}}'), space
        for space in ("   ", "\n\n", "\r", "  \n", " \n" * MAX_SPACES, most + " "):
            for text in (f'{{{space}"a":1}}', f'{{"a"{space}:1}}', f'{{"a":{space}1}}', f'{{"a":1{space}}}'):
                assert not allows(grammar, text), text
        assert not allows(grammar, ' {"a":1}') and not allows(grammar, '{"a":1} ')


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
def test_what_printers_of_json_write_is_allowed(indent, compile_bytes, allows):
    """Eight levels of four columns, lines of both kinds."""
    value: object = {"a": [], "b": {}}
    for level in range(6):
        value = {"a": value} if level % 2 else [1, value]
    text = json.dumps(value, indent=indent)
    assert allows(compile_bytes({}), text) and allows(compile_bytes({}), text.replace("\n", "\r\n"))


SCALARS = st.sampled_from([None, True, 0, 1, -3, 2.5, "", "a", "ab", "é\n"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)


def schemas(inner):
    small = st.integers(0, 3)
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("object")}, optional={
            "properties": st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abcd"), max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "maxProperties": st.integers(2, 4),
        }),
        st.fixed_dictionaries({"type": st.just("array")}, optional={
            "items": inner, "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": small, "maxItems": small,
        }),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}, optional={"title": st.just("d")}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
    )  # fmt: skip


LEAVES = st.one_of(
    st.sampled_from([True, {}, {"type": "null"}, {"type": "boolean"}, {"$ref": "#"}, {"type": ["integer", "null"]}]),
    st.fixed_dictionaries({"type": st.sampled_from(["integer", "number"])}, optional={
        "minimum": st.integers(-20, 20) | st.sampled_from([-2.5, 0.1]), "maximum": st.integers(-5, 40),
        "exclusiveMaximum": st.integers(0, 50), "multipleOf": st.sampled_from([2, 3, 5]),
    }),
    st.fixed_dictionaries({"type": st.just("string")}, optional={
        "minLength": st.integers(0, 3), "maxLength": st.integers(2, 5),
        "pattern": st.sampled_from(["^[a-c]*$", "b", r"^\w+$", r"\d{2}", "[^a]", "a.c|x"]),
    }),
    VALUES.map(lambda value: {"const": value}), st.lists(VALUES, min_size=1, max_size=3).map(lambda v: {"enum": v}),
)  # fmt: skip


@given(schema=st.recursive(LEAVES, schemas, max_leaves=6), seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_random_answers_of_random_schemas_are_valid(schema, seed, compile_bytes, finished_answer):
    original = copy.deepcopy(schema)
    try:
        grammar = compile_bytes(schema)
    except GrammarRefused:
        assume(False)
    answer = finished_answer(grammar, seed)
    assume(answer is not None)
    try:
        jsonschema.Draft202012Validator(original).validate(json.loads(answer))
    except RecursionError:
        assume(False)  # a schema that is only a reference to itself says nothing


KEYWORDS = (
    "type",
    "enum",
    "properties",
    "required",
    "items",
    "minLength",
    "maxItems",
    "minimum",
    "multipleOf",
    "anyOf",
)
KEYWORDS += (
    "additionalProperties",
    "patternProperties",
    "pattern",
    "$ref",
    "prefixItems",
    "uniqueItems",
    "const",
    "not",
)
ODD = st.recursive(
    SCALARS | st.sampled_from(["string", "#", ["a"], [], {}]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=3),
    max_leaves=5,
)


@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), ODD, min_size=1, max_size=4))
@settings(max_examples=100)
def test_what_the_metaschemas_refuse_is_refused(schema):
    """Of every draft: one that names none may be of any."""
    drafts = (jsonschema.Draft4Validator, jsonschema.Draft7Validator, jsonschema.Draft202012Validator)
    if any(is_well_formed(draft, schema) for draft in drafts):
        with contextlib.suppress(GrammarRefused):
            checked_schema(json.dumps(schema))
    else:
        with pytest.raises(GrammarRefused):
            checked_schema(json.dumps(schema))


def is_well_formed(draft, schema) -> bool:
    try:
        draft.check_schema(schema)
    except jsonschema.SchemaError:
        return False
    return True
