"""A format beside tools that the model may call or not: from a model of noise each finished answer is valid content or
valid calls, whichever family writes them, whole and streamed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from callboard.bench.random_model import write_random_model
from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.api import Reply, at_once

pytestmark = pytest.mark.slow

CONTENT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "parameters": {"type": "boolean"}},
    "required": ["name", "parameters"],
    "additionalProperties": False,
}
ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "strict": True, "parameters": ARGUMENTS}},
    {"type": "function", "function": {"name": "clock", "strict": True, "parameters": {**ARGUMENTS, "required": []}}},
]
FORMATS: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": CONTENT}}},
    {"structured_outputs": {"choice": ["<tool", "[TOOL", "yes"]}},
    {"structured_outputs": {"regex": "[a-z<\\[]{1,3}!"}},
    {"structured_outputs": {"grammar": 'start: "(" start ")" | "<" "x" | "[" "x"'}},
)
MAX_TOKENS = 400


@pytest.fixture(
    scope="module",
    params=[
        "hermes think",
        "llama3",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("hermes", "mistral", "qwen3_coder", "kimi_k2")),
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    family, *reasoning = request.param.split()
    folder = tmp_path_factory.mktemp("noise")
    write_random_model(folder, merges_letters=True, max_model_len=1024)
    settings = ("model.dtype=float32", f"model.tool_call_parser={family}")
    settings += tuple(f"model.reasoning_parser={style}" for style in reasoning)
    with ServerProcess(str(folder), *(word for setting in settings for word in ("--set", setting))) as server:
        yield server


def _ask(send: Callable[..., Reply], server: ServerProcess, seed: int, **fields: Any) -> tuple[str, list[Any], str]:
    """Content, calls and finish reason; streamed if the seed is odd."""
    body = {
        "messages": [{"role": "user", "content": f"{seed}"}],
        "tools": TOOLS,
        "temperature": 1.5,
        "seed": seed,
        "max_tokens": MAX_TOKENS,
        "stream": seed % 2 == 1,
        **fields,
    }
    reply = send(f"{server.url}/v1/chat/completions", body)
    assert reply.status == 200, reply.text
    if seed % 2 == 0:
        (choice,) = reply.json["choices"]
        message = choice["message"]
        return message["content"] or "", message.get("tool_calls") or [], choice["finish_reason"]
    content, calls, reason = "", [], ""
    for chunk in reply.chunks:
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls") or []:
                if piece["index"] == len(calls):
                    calls.append(piece)
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
            reason = choice["finish_reason"] or reason
    return content, calls, reason


def _answers_of_both_kinds(
    send: Callable[..., Reply], server: ServerProcess, **fields: Any
) -> list[tuple[str, list[Any], str]]:
    """16 answers, and more until there are both calls and content that came to their end."""
    answers: list[tuple[str, list[Any], str]] = []
    while len(answers) < 16 or not {"stop", "tool_calls"} <= {reason for _, _, reason in answers}:
        assert len(answers) < 160, "one of the kinds never comes"
        seeds = range(len(answers), len(answers) + 8)
        answers += at_once(lambda seed: _ask(send, server, seed, **fields), seeds)
    return answers


def _check_calls(calls: list[Any]) -> None:
    for call in calls:
        (tool,) = [tool for tool in TOOLS if tool["function"]["name"] == call["function"]["name"]]
        jsonschema.validate(json.loads(call["function"]["arguments"]), tool["function"]["parameters"])


def test_each_answer_is_one_of_both(server: ServerProcess, send: Callable[..., Reply]) -> None:
    for content, calls, reason in _answers_of_both_kinds(send, server, **FORMATS[0]):
        if reason == "tool_calls":
            assert not content and calls
            _check_calls(calls)
        elif reason == "stop":
            assert not calls
            jsonschema.validate(json.loads(content), CONTENT)


def test_one_call_at_most(server: ServerProcess, send: Callable[..., Reply]) -> None:
    fields = {**FORMATS[0], "parallel_tool_calls": False}
    for content, calls, reason in _answers_of_both_kinds(send, server, **fields):
        assert len(calls) == (reason == "tool_calls") or reason == "length"
        assert bool(content) == (reason == "stop") or reason == "length"
        _check_calls(calls if reason == "tool_calls" else [])


def test_the_choice_of_tools_decides_what_may_come(server: ServerProcess, send: Callable[..., Reply]) -> None:
    named = {"type": "function", "function": {"name": "clock"}}
    for choice in ("none", "required", named):
        fields = {**FORMATS[0], "tool_choice": choice}
        for content, calls, reason in at_once(lambda seed, f=fields: _ask(send, server, seed, **f), range(4)):
            if reason == "length":
                continue
            assert (reason == "stop") == (choice == "none") == bool(content) == (not calls)
            _check_calls(calls)
            assert choice != named or all(call["function"]["name"] == "clock" for call in calls)
            if choice == "none":
                jsonschema.validate(json.loads(content), CONTENT)


def test_formats_other_than_json(server: ServerProcess, send: Callable[..., Reply]) -> None:
    """Which begin as a call does for some characters."""
    regex = jsonschema.Draft202012Validator({"pattern": r"^(<tool|\[TOOL|yes|[a-z<\[]{1,3}!|\(*[<\[]x\)*)$"})
    ends: Counter[str] = Counter()
    for form in FORMATS[1:]:
        for content, calls, reason in at_once(lambda seed, f=form: _ask(send, server, seed, **f), range(6)):
            ends[reason] += 1
            if reason == "stop":
                assert not calls and regex.is_valid(content), content
            elif reason == "tool_calls":
                assert not content
                _check_calls(calls)
    assert ends["stop"] >= 4
