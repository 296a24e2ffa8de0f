"""The fields that say what an answer has to look like: each becomes one format, and a refusal of the engine a 400."""

from __future__ import annotations

import json

import openai
import pytest
from fake_frontend import MODEL, delta, events_of, finish, hello
from prometheus_client.parser import text_string_to_metric_families

from callboard.mailbox.messages.grammar import (
    ChoiceFormat,
    ContentOrCalls,
    GrammarFormat,
    JsonFormat,
    RegexFormat,
    Tag,
    TagsFormat,
)
from callboard.server.format_fields import MAX_FORMAT_BYTES
from callboard.tests.text.tool_call_texts import write_calls
from callboard.text.tool_calls import FAMILIES, CallBegun, Tool, ToolCallParser, call_ids

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRUCTURE = {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}
NAMED = {"name": "t", "description": "d", "strict": True, "schema": SCHEMA}
TAG = {"structures": [STRUCTURE], "triggers": ["<f"]}
ENDPOINTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}
JSON = ("json", SCHEMA)
OBJECT = ("json", {"type": "object"})
REGEX, GRAMMAR = RegexFormat("[ab]+"), GrammarFormat('root ::= "a"')
FORMS = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, OBJECT),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, JSON),
    (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        JSON,
    ),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": False}}}, ("json", False)),
    ({"response_format": {"type": "structural_tag", **TAG}}, "tags"),
    ({"response_format": {"type": "grammar", "grammar": GRAMMAR.grammar}}, GRAMMAR),
    ({"structured_outputs": {"json": SCHEMA, "regex": None, "disable_any_whitespace": False}}, JSON),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, JSON),
    ({"structured_outputs": {"regex": REGEX.pattern}}, REGEX),
    ({"structured_outputs": {"choice": ["a", "b", "a"]}}, ChoiceFormat(("a", "b"))),
    ({"structured_outputs": {"grammar": GRAMMAR.grammar}}, GRAMMAR),
    ({"structured_outputs": {"json_object": True}}, OBJECT),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "tags"),
    ({"guided_json": SCHEMA, "guided_decoding_backend": "auto"}, JSON),
    ({"guided_json": json.dumps(SCHEMA)}, JSON),
    ({"guided_regex": REGEX.pattern}, REGEX),
    ({"guided_choice": ["a", "b"]}, ChoiceFormat(("a", "b"))),
    ({"guided_grammar": GRAMMAR.grammar}, GRAMMAR),
    ({"guided_json_object": True}, OBJECT),
    ({"guided_json_object": False}, None),
    ({"json_schema": json.dumps(SCHEMA)}, JSON),
    ({"json_schema": SCHEMA}, JSON),
    ({"regex": REGEX.pattern}, REGEX),
    ({"ebnf": GRAMMAR.grammar}, GRAMMAR),
    ({"structural_tag": TAG}, "tags"),
    ({"grammar": GRAMMAR.grammar, "response_format": {"type": "text"}}, GRAMMAR),
    ({"grammar": "", "json_schema": SCHEMA}, JSON),
]


def check_format(asked, expected):
    match expected:
        case ("json", schema):
            assert isinstance(asked, JsonFormat) and json.loads(asked.schema) == schema
        case "tags":
            (tag,) = asked.tags
            assert (tag.begin, json.loads(tag.schema), tag.end, tag.style) == ("<f>", SCHEMA, "</f>", "json")
            assert asked.triggers == ("<f",) and not asked.at_least_one
        case _:
            assert asked == expected


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_each_field_becomes_its_format(serve, http, frontend, path):
    url = await serve()
    for fields, expected in FORMS:
        async with http.post(url + path, json={**ENDPOINTS[path], **fields}) as response:
            assert response.status == 200, (fields, await response.text())
            assert "x-ignored-fields" not in response.headers
        check_format(frontend.streams[-1].output_format, expected)


TWO = [
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format", "guided_regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.regex", "structured_outputs.choice"),
    ({"structured_outputs": {"regex": "a"}, "regex": "a"}, "structured_outputs.regex", "regex"),
    ({"json_schema": SCHEMA, "ebnf": "a"}, "json_schema", "ebnf"),
]


@pytest.mark.parametrize(("fields", "first", "second"), TWO)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_two_formats_are_refused_by_both_names(serve, http, frontend, path, fields, first, second):
    async with http.post(await serve() + path, json={**ENDPOINTS[path], **fields}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, second)
    assert first in error["message"] and second in error["message"]
    assert frontend.streams == []


async def test_a_format_beside_tools(serve, http, frontend):
    """Where a call must come the format has nothing to hold; where one may come the answer is one of both."""
    frontend.tool_call_parser = "hermes"
    url = await serve()
    tool = {"type": "function", "function": {"name": "now"}}
    for choice, expected in (("none", JsonFormat), ("required", TagsFormat), ("auto", ContentOrCalls), (None, "auto")):
        body = {**ENDPOINTS["/v1/chat/completions"], "tools": [tool], "tool_choice": choice, "guided_json": SCHEMA}
        async with http.post(url + "/v1/chat/completions", json=body) as response:
            assert response.status == 200
        asked = frontend.streams[-1].output_format
        assert isinstance(asked, ContentOrCalls if expected == "auto" else expected)
    check_format(asked.content, JSON)
    assert (asked.mark, asked.calls.triggers, asked.calls.at_least_one) == ("<tool_call>", (), True)
    assert frontend.streams[-1].kept_markers == ("<tool_call>", "</tool_call>")


async def test_formats_of_any_size(serve, http):
    url = await serve()
    for fields in ({"regex": "a" * (MAX_FORMAT_BYTES + 1)}, {"guided_choice": ["a" * 1000] * 1100}):
        async with http.post(url + "/v1/completions", json={"prompt": "a", **fields}) as response:
            error = (await response.json())["error"]
        assert (response.status, error["param"]) == (400, next(iter(fields))) and "limit" in error["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_what_the_grammar_refuses_is_a_400(serve, http, frontend, path, stream):
    """It names the field, and counts as no answer that failed; n and streaming change nothing."""
    url = await serve()
    sentence = "minLength is -1"
    frontend.script = lambda stream: stream.push(
        *[
            delta(end=finish("error", 0, message=sentence, status=400), choice=choice)
            for choice in range(stream.num_choices)
        ]
    )
    body = {**ENDPOINTS[path], "response_format": {"type": "json_object"}, "stream": stream, "n": 2}
    async with http.post(url + path, json=body) as response:
        answer = await response.json()
        assert response.status == 400 and response.headers["x-request-id"]
    assert answer["error"] == {
        "message": sentence,
        "type": "invalid_request_error",
        "param": "response_format",
        "code": None,
    }
    async with http.get(url + "/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    counts = {
        sample.labels.get("finished_reason"): sample.value
        for family in families
        for sample in family.samples
        if sample.name == "callboard:request_success_total"
    }
    assert not counts.get("error")
    frontend.script = hello
    async with http.post(url + path, json=body) as response:
        assert response.status == 200


async def test_a_refusal_behind_the_first_chunk_is_an_event(serve, http, frontend):
    frontend.script = lambda stream: stream.push(
        delta("a", [1]), delta(end=finish("error", 1, message="no token fits", status=400), position=1)
    )
    body = {"prompt": "a", "regex": "a", "stream": True}
    async with http.post(await serve() + "/v1/completions", json=body) as response:
        assert response.status == 200
        events = events_of(await response.read())
    assert events[-2]["error"]["message"] == "no token fits" and events[-1] == "[DONE]"
    assert events[-2]["error"]["type"] == "invalid_request_error"


async def test_the_client_raises_for_it(serve, frontend):
    frontend.script = lambda stream: stream.push(delta(end=finish("error", 0, message="no", status=400)))
    async with openai.AsyncOpenAI(base_url=await serve() + "/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="no"):
            await client.completions.create(model=MODEL, prompt="a", extra_body={"guided_regex": "a"})


async def test_a_session_takes_no_format(serve, http, frontend):
    body = {"prompt": "a", "session": True, "stream": True, "regex": "a"}
    async with http.post(await serve() + "/v1/completions", json=body) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"], error["code"]) == (400, "regex", "not_supported_yet")


async def test_no_output_needs_no_format(serve, http, frontend):
    body = {"prompt": "a", "echo": True, "max_tokens": 0, "regex": "a"}
    async with http.post(await serve() + "/v1/completions", json=body) as response:
        assert response.status == 200
    assert frontend.streams[0].output_format is None


# Calls that must come


GIVEN = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "g"}},
    {"type": "function", "function": {"name": "h", "parameters": {"properties": {"b": {}}}}},
]


async def format_of(serve, http, frontend, family, **fields):
    frontend.tool_call_parser = family
    body = {**ENDPOINTS["/v1/chat/completions"], "tools": GIVEN, **fields}
    async with http.post(await serve() + "/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
    return frontend.streams[-1].output_format


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_the_grammar_writes_calls_as_the_family_does(serve, http, frontend, family):
    """Against texts that are written without the table; arguments of the XML families have none here."""
    style = {"qwen3_coder": "qwen_xml", "glm": "glm_xml"}.get(family, "json")
    asked = await format_of(serve, http, frontend, family, tool_choice="required")
    assert (asked.triggers, asked.at_least_one, asked.at_most_one) == ((), True, False)
    body = "{}" if style == "json" else ""
    calls = [("f", "{}"), ("g", "{}")]
    begins = [tag.begin + body + tag.end for tag in asked.tags[:2]]
    text = asked.prefix + asked.separator.join(begins) + asked.suffix
    if family == "kimi_k2":  # a grammar does not count
        text = text.replace("functions.g:0", "functions.g:1")
    if family == "mistral":  # which writes an id of its own behind the arguments
        text = text.replace("{}}", '{}, "id": "A1b2C3d4E"}')
    assert text == write_calls(family, calls)
    assert {tag.style for tag in asked.tags} == {style}


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"json"}))
async def test_content_or_calls_are_told_apart_by_a_mark(serve, http, frontend, family):
    """Which no JSON begins with; the calls behind it are those that the family writes."""
    asked = await format_of(serve, http, frontend, family, response_format={"type": "json_object"})
    assert asked.mark in FAMILIES[family].markers or (family, asked.mark[:11]) == ("harmony", "<|channel|>")
    text = asked.calls.prefix + asked.calls.tags[1].begin
    body = "" if asked.calls.tags[1].style != "json" else "{}"
    text += body + asked.calls.tags[1].end + asked.calls.suffix
    assert text.startswith(asked.mark)
    tools = [Tool("f"), Tool("g")]
    parser = ToolCallParser(FAMILIES[family], tools, call_ids(FAMILIES[family], "k"))
    deltas = parser.feed(text) + parser.finish()
    assert [(d.name if isinstance(d, CallBegun) else d.text) for d in deltas] == ["g", "{}"]
    schemas = [json.loads(tag.schema) for tag in asked.calls.tags]
    assert schemas == [SCHEMA, {"type": "object"}, {"type": "object"}]


async def test_calls_without_a_mark_beside_a_format_are_refused(serve, http, frontend):
    frontend.tool_call_parser = "json"
    body = {**ENDPOINTS["/v1/chat/completions"], "tools": GIVEN, "guided_json": SCHEMA}
    async with http.post(await serve() + "/v1/chat/completions", json=body) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"], error["code"]) == (400, "guided_json", "not_supported")
    assert "family json" in error["message"] and '"required"' in error["message"]


async def test_what_is_held_to_a_schema(serve, http, frontend):
    """All arguments where a call must come; those of strict tools where one may; objects in any case."""
    required = await format_of(serve, http, frontend, "hermes", tool_choice="required")
    schemas = [json.loads(tag.schema) for tag in required.tags]
    assert schemas[0] == SCHEMA and schemas[1]["type"] == "object" and not schemas[1].get("properties")
    assert schemas[2] == {"type": "object", "properties": {"b": {}}}
    auto = await format_of(serve, http, frontend, "hermes")
    assert [json.loads(tag.schema) for tag in auto.tags] == [SCHEMA, {"type": "object"}, {"type": "object"}]
    assert auto.triggers == ("<tool_call>",) and not auto.at_least_one
    lax = [{"type": "function", "function": {"name": "g"}}]
    assert await format_of(serve, http, frontend, "hermes", tools=lax) is None
    named = {"type": "function", "function": {"name": "g"}}
    (tag,) = (await format_of(serve, http, frontend, "hermes", tool_choice=named)).tags
    assert isinstance(tag, Tag) and '"g"' in tag.begin
    assert len(json.loads(frontend.streams[-1].options.tools)) == 3


@pytest.mark.parametrize(("mode", "told"), [("auto", ["g", "h"]), ("required", ["f", "g", "h"])])
async def test_some_of_the_tools(serve, http, frontend, mode, told):
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": name}} for name in ("h", "g")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    asked = await format_of(serve, http, frontend, "hermes", tool_choice=choice)
    assert (None if asked is None else len(asked.tags)) == (None if mode == "auto" else 2)
    tools = json.loads(frontend.streams[-1].options.tools)
    assert [tool["function"]["name"] for tool in tools] == told


def named(name):
    return {"type": "function", "function": {"name": name}}


def with_type(kind):
    return {"type": "function", "function": {"name": f"of_{len(str(kind))}", "parameters": {"type": kind}}}


WRONG = [
    ({"tools": [named("f"), named("f")]}, "tools[1].function.name"),
    ({"tools": [named("")]}, "tools[0].function.name"),
    ({"tools": [named("a b")]}, "tools[0].function.name"),
    ({"tools": [named("x" * 129)]}, "tools[0].function.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0].function.parameters"),
    ({"tools": [with_type("array")]}, "tools[0].function.parameters.type"),
    ({"tools": [with_type("object"), with_type(["object", "null"])]}, "tools[1].function.parameters.type"),
    ({"tools": [with_type(None)]}, "tools[0].function.parameters.type"),
    ({"functions": [with_type("string")["function"]]}, "functions[0].parameters.type"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
    ({"tools": [named("f")] * 1025}, "tools"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": named("f")}, "tool_choice"),
    ({"tools": [named("f")], "tool_choice": named("g")}, "tool_choice"),
    ({"tools": [named("f")], "tool_choice": {}}, "tool_choice"),
    ({"tools": [named("f")], "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": [named("f")], "tool_choice": {"type": "function", "function": {}}}, "tool_choice"),
    ({"tools": [named("f")], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"tools": [named("f")], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [named("f")], "functions": [{"name": "f"}]}, "functions"),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
    ({"functions": [{"name": "f"}], "function_call": "auto", "tool_choice": "auto"}, "function_call"),
    ({"tools": [named("f")], "parallel_tool_calls": 1}, "parallel_tool_calls"),
]


async def test_wrong_tools_are_named(serve, http, frontend):
    frontend.tool_call_parser = "hermes"
    url = await serve()
    for fields, param in WRONG:
        async with http.post(url + "/v1/chat/completions", json={**ENDPOINTS["/v1/chat/completions"], **fields}) as got:
            answer = await got.json()
        assert got.status == 400 and answer["error"]["param"].startswith(param), (fields, answer)
        assert answer["error"]["param"].split("[")[0].split(".")[0] in answer["error"]["message"]
    assert frontend.streams == []


async def test_a_template_that_tells_of_no_tools(serve, http, frontend):
    """Tools that the model may call or not are named as ignored; where a call must come the grammar makes one."""
    frontend.tool_call_parser = "auto"
    url = await serve()
    body = {**ENDPOINTS["/v1/chat/completions"], "tools": GIVEN[1:]}
    for choice, ignored in (("auto", "tools"), ("required", None)):
        async with http.post(url + "/v1/chat/completions", json={**body, "tool_choice": choice}) as response:
            assert response.status == 200 and response.headers.get("x-ignored-fields") == ignored
    assert isinstance(frontend.streams[-1].output_format, TagsFormat)


async def test_tools_at_tokenize_are_those_of_the_template(serve, http, frontend):
    url = await serve()
    body = {**ENDPOINTS["/v1/chat/completions"], "tools": GIVEN, "reasoning_effort": "low"}
    for choice, expected in (("auto", GIVEN), ("none", [])):
        async with http.post(url + "/tokenize", json={**body, "tool_choice": choice}) as response:
            assert response.status == 200 and "x-ignored-fields" not in response.headers
        _, options = frontend.tokenized[-1]
        assert json.loads(options.tools or b"[]") == expected
        assert json.loads(options.template_kwargs) == {"reasoning_effort": "low"}
