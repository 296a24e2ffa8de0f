"""Faults that users of other engines met with structured output (docs/cases.md), on a server with a model of noise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from callboard.bench.random_model import write_random_model
from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.api import Api, Reply, at_once

MAX_WHITE_SPACE = 64
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, send: Callable[..., Reply]) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("formats")
    write_random_model(folder, merges_letters=True, max_model_len=1024)
    with ServerProcess(str(folder), "--set", "model.dtype=float32") as server:
        yield Api(server, send)


def wants(schema: Any, **fields: object) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": schema}}
    return {"max_tokens": 200, "temperature": 1, "response_format": form, **fields}


def is_alive(api: Api) -> None:
    assert api.get("/health").status == 200
    assert api.ask("chat", "hello", max_tokens=1).status == 200


INVALID: tuple[Any, ...] = (
    {"type": "strin"},
    {"type": "object", "properties": {"foo": "bar"}},
    {"$ref": "#/nope"},
    {"type": "string", "pattern": "[.*"},
    {"required": "a", "type": "object"},
    {"type": "string", "minLength": -1},
    {"enum": []},
    False,
    {"anyOf": []},
    {"type": "array", "items": 5},
    {"$ref": "http://example.invalid/s.json"},
)
IMPOSSIBLE: tuple[Any, ...] = (
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "integer", "minimum": 1.2, "maximum": 1.8},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"$ref": "#"},
)


@pytest.mark.slow
@pytest.mark.parametrize("is_streamed", [False, True])
def test_x01_x16_a_bad_or_impossible_schema_is_a_400(api: Api, is_streamed: bool) -> None:
    """Before anything is streamed, too."""
    for schema in (*INVALID, *IMPOSSIBLE):
        reply = api.ask("chat", "answer", **wants(schema, stream=is_streamed))
        assert reply.status == 400, (schema, reply.text)
        assert reply.error["type"] == "invalid_request_error", reply.text
    is_alive(api)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [{"regex": "[.*"}, {"grammar": "start: nothing_like_it"}, {"grammar": "root ::= nothing"}, {"choice": []}, {}],
)
def test_x01_a_bad_expression_or_grammar_is_a_400(api: Api, form: dict[str, Any]) -> None:
    reply = api.ask("chat", "answer", structured_outputs=form, max_tokens=5)
    assert reply.status == 400 and reply.error["message"], reply.text
    is_alive(api)


@pytest.mark.slow
def test_x04_lengths_hold_beside_a_pattern(api: Api) -> None:
    text = {"type": "string", "pattern": "^[a-z]+$", "minLength": 5, "maxLength": 7}
    schema = {"type": "object", "properties": {"k": text}, "required": ["k"], "additionalProperties": False}
    replies = at_once(lambda seed: api.ask("chat", "answer", **wants(schema, seed=seed)), range(50))
    if replies[0].status == 400:
        assert all("pattern" in reply.error["message"] for reply in replies)
        return
    for reply in replies:
        (choice,) = reply.json["choices"]
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)


@pytest.mark.slow
@pytest.mark.parametrize("schema", [OBJECT, None])
def test_x09_white_space_is_bounded(api: Api, schema: Any) -> None:
    """Even for a model that wants nothing else."""
    white = {str(api.post("/tokenize", {"prompt": text}).json["tokens"][0]): 100 for text in (" ", "\n", "\t", "\r")}
    fields: dict[str, Any] = {"max_tokens": 900, "logit_bias": white}
    fields["response_format"] = {"type": "json_object"} if schema is None else wants(schema)["response_format"]
    if schema is None:
        fields["max_tokens"] = 300
    replies = at_once(lambda seed: api.ask("chat", "answer", seed=seed, temperature=1, **fields), range(8))
    for reply in replies:
        (choice,) = reply.json["choices"]
        text = choice["message"]["content"]
        outside = re.sub(r'"(?:[^"\\]|\\.)*"?', '""', text)
        assert max(map(len, re.findall(r"\s+", outside)), default=0) <= MAX_WHITE_SPACE
        if schema is not None:
            assert choice["finish_reason"] == "stop", text
            jsonschema.validate(json.loads(text), schema)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("weather", "time")
]


@pytest.mark.slow
@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "time"}}])
def test_x14_a_forced_call_that_is_cut_off_is_no_fault(api: Api, tool_choice: Any) -> None:
    for max_tokens in (1, 3, 10):
        for is_streamed in (False, True):
            fields = {"tools": TOOLS, "tool_choice": tool_choice, "max_tokens": max_tokens, "stream": is_streamed}
            reply = api.ask("chat", "answer", temperature=1, seed=3, **fields)
            assert reply.status == 200, reply.text
            choices = [c for chunk in reply.chunks for c in chunk["choices"]] if is_streamed else reply.json["choices"]
            assert choices[-1]["finish_reason"] == "length", reply.text
    is_alive(api)


@pytest.mark.slow
def test_a_forced_call_is_a_call_and_its_arguments_are_what_the_schema_says(api: Api) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": schema}}
    fields: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    replies = at_once(
        lambda seed: api.ask("chat", "answer", temperature=1.5, seed=seed, max_tokens=200, **fields), range(16)
    )
    for reply in replies:
        (choice,) = reply.json["choices"]
        assert choice["finish_reason"] in ("tool_calls", "stop"), reply.text
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        jsonschema.validate(json.loads(call["function"]["arguments"]), schema)


@pytest.mark.slow
def test_formats_other_than_json(api: Api) -> None:
    def text(**form: object) -> str:
        reply = api.ask("completions", "answer", temperature=1.5, seed=5, max_tokens=60, structured_outputs=form)
        (choice,) = reply.json["choices"]
        assert choice["finish_reason"] == "stop", reply.text
        return str(choice["text"])

    assert text(choice=["red", "dark green"]) in ("red", "dark green")
    assert re.fullmatch(r"[A-Z]{2}-\d{1,4}", text(regex=r"[A-Z]{2}-\d{1,4}"))
    assert re.fullmatch(r"(ab){1,3}c", text(grammar='root ::= ("ab" ("ab" ("ab")?)?) "c"'))
    assert re.fullmatch(r"x|yz", text(grammar='start: "x" | "yz"'))


@pytest.mark.slow
def test_a_format_and_its_neighbours(api: Api) -> None:
    """n > 1, log-probabilities, min_tokens, ignore_eos, stop strings: each with a format."""
    reply = api.ask("chat", "answer", **wants(OBJECT, n=3, seed=1, logprobs=True, top_logprobs=2, temperature=1.5))
    for choice in reply.json["choices"]:
        jsonschema.validate(json.loads(choice["message"]["content"]), OBJECT)
        assert "".join(entry["token"] for entry in choice["logprobs"]["content"]).startswith(
            choice["message"]["content"]
        )
    reply = api.ask("chat", "answer", **wants({"enum": ["x"]}, min_tokens=50, ignore_eos=True))
    (choice,) = reply.json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('"x"', "stop"), "the form is stronger"
    reply = api.ask("chat", "answer", **wants({"enum": ["abcabc"]}, stop=["ca"]))
    (choice,) = reply.json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ('"ab', "stop")
