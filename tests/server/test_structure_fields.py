"""The later form of structural tags, with `format`: each kind becomes its element, and what is wrong is named."""

from __future__ import annotations

import json

import msgspec
import pytest

from callboard.mailbox.messages.grammar import StructureFormat
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
from callboard.server.structure_fields import MAX_DEPTH, STRUCTURE_KINDS

CONST = {"type": "const_string", "value": "a"}
CALL = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": {"type": "object"}}, "end": "</f>"}
TAGGED = Tagged("<f>", SchemaText('{"type":"object"}'), ("</f>",))
A = ConstText("a")
KINDS = [
    (CONST, A),
    ({"type": "json_schema", "json_schema": True, "style": "json"}, SchemaText("true")),
    ({"type": "regex", "pattern": "[ab]"}, PatternText("[ab]")),
    ({"type": "grammar", "grammar": 'root ::= "a"'}, GrammarText('root ::= "a"')),
    ({"type": "grammar", "grammar": 'start: "a"', "syntax": "lark"}, GrammarText('start: "a"')),
    ({"type": "any_text"}, AnyText()),
    ({"type": "any_text", "excludes": ["b"]}, AnyText(("b",))),
    ({"type": "sequence", "elements": [CONST, CONST]}, InOrder((A, A))),
    ({"type": "or", "elements": [CONST]}, OneOf((A,))),
    ({"type": "optional", "content": CONST}, Repeated(A, 0, 1)),
    ({"type": "star", "content": CONST}, Repeated(A, 0, None)),
    ({"type": "plus", "content": CONST}, Repeated(A, 1, None)),
    ({"type": "repeat", "min": 2, "max": -1, "content": CONST}, Repeated(A, 2, None)),
    ({"type": "repeat", "min": 2, "max": 3, "content": CONST}, Repeated(A, 2, 3)),
    ({"type": "tag", **CALL}, TAGGED),
    ({**CALL, "content": CONST, "end": ["b", "c", "b"]}, Tagged("<f>", A, ("b", "c"))),
    (
        {"type": "triggered_tags", "triggers": ["<f"], "tags": [CALL], "at_least_one": True, "excludes": ["b"]},
        TriggeredTags(("<f",), (TAGGED,), True, False, ("b",)),
    ),
    (
        {"type": "tags_with_separator", "tags": [{"type": "tag", **CALL}], "separator": ",", "stop_after_first": True},
        SeparatedTags((TAGGED,), ",", False, True),
    ),
]
PLACES = (
    lambda form: {"response_format": {"type": "structural_tag", "format": form}},
    lambda form: {"structural_tag": {"type": "structural_tag", "format": form}},
    lambda form: {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}},
)


async def ask(serve, http, fields):
    async with http.post(await serve() + "/v1/completions", json={"prompt": "hi", **fields}) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("place", range(len(PLACES)))
async def test_each_kind_becomes_its_element(serve, http, frontend, place):
    for form, element in KINDS:
        status, answer = await ask(serve, http, PLACES[place](form))
        assert status == 200, (form, answer)
        asked = frontend.streams[-1].output_format
        spaceless = [msgspec.json.encode(form).replace(b" ", b"") for form in (asked, StructureFormat(element))]
        assert spaceless[0] == spaceless[1]
    assert {form.get("type", "tag") for form, _ in KINDS} == set(STRUCTURE_KINDS)


DEEP: dict[str, object] = CONST
for _ in range(MAX_DEPTH + 1):
    DEEP = {"type": "star", "content": DEEP}
WRONG = [
    ({"type": "token", "token": 5}, "type"), ({"type": "dispatch", "rules": []}, "type"), ({"type": "no"}, "type"),
    ({"type": "token_triggered_tags"}, "type"), ({"type": "qwen_xml_parameter", "json_schema": {}}, "type"),
    ({"type": "const_string"}, ""), ({"type": "const_string", "value": "a", "other": 1}, ""),
    ({"type": "json_schema", "json_schema": 5}, "json_schema"),
    ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "style"),
    ({"type": "json_schema", "json_schema": {}, "any_order": True}, "any_order"),
    ({"type": "any_text", "max_tokens": 5}, "max_tokens"), ({"type": "any_text", "excludes": [""]}, "excludes"),
    ({"type": "grammar", "grammar": "a", "syntax": "peg"}, "syntax"),
    ({"type": "sequence", "elements": []}, "elements"),
    ({"type": "sequence", "elements": [CONST, {"type": "or", "elements": [{"type": "no"}]}]},
     "elements[1].elements[0].type"),
    ({"type": "repeat", "min": 3, "max": 2, "content": CONST}, "min"),
    ({"type": "tag", **CALL, "end": []}, "end"), ({"type": "tag", **CALL, "end": {"type": "token", "token": 5}}, "end"),
    ({"type": "triggered_tags", "triggers": ["<g"], "tags": [CALL]}, "tags[0].begin"),
    ({"type": "triggered_tags", "triggers": ["<", "<f"], "tags": [CALL]}, "tags[0].begin"),
    ({"type": "triggered_tags", "triggers": ["<f"], "tags": [CONST]}, "tags[0].type"), (DEEP, "content"), (5, ""),
]  # fmt: skip


async def test_what_is_wrong_is_named(serve, http, frontend):
    for form, place in WRONG:
        status, answer = await ask(serve, http, {"structural_tag": {"type": "structural_tag", "format": form}})
        assert status == 400, form
        param = answer["error"]["param"]
        assert param.startswith("structural_tag.format") and place in param, (form, answer)
        assert param.removesuffix(".type") in answer["error"]["message"]
    both = {"format": CONST, "triggers": ["a"]}
    status, answer = await ask(serve, http, {"structural_tag": both})
    assert (status, answer["error"]["param"]) == (400, "structural_tag")
    for kind in ("token", "dispatch", "any_tokens"):
        status, answer = await ask(serve, http, {"structural_tag": {"format": {"type": kind}}})
        assert kind in answer["error"]["message"] and answer["error"]["code"] == "not_supported_yet"
    assert frontend.streams == []
