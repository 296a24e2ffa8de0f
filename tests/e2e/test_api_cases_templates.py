"""Reported faults of chat templates and of histories with tool calls, through a whole engine: K04, K05, K07."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.bench.server_process import ServerFailed
from callboard.tests.e2e.api import STREAM, Api, at_once, usage_of
from callboard.tests.e2e.conftest import Send
from callboard.tests.e2e.null_engine import null_server

pytestmark = pytest.mark.slow

USER = {"role": "user", "content": "x"}
SYSTEM = {"role": "system", "content": "be short"}
STRICT = """{%- for m in messages -%}
{%- if m.role == 'tool' -%}{{ raise_exception('no tool role here') }}{%- endif -%}
{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('only one system message, first') }}{%- endif -%}
{%- if m.role == 'user' and not loop.first and loop.previtem.role == 'user' -%}
{{- raise_exception('roles must alternate') -}}{%- endif -%}
{%- if m.content == 'for ever' -%}{%- for i in range(99999) -%}{%- for j in range(99999) -%}{%- endfor -%}{%- endfor -%}
{%- elif m.content == 'escape' -%}{{ ''.__class__.__mro__[1].__subclasses__() }}
{%- elif m.content == 'divide' -%}{{ 1 / 0 }}
{%- elif m.content == 'undefined' -%}{{ m.a.b.c }}
{%- endif -%}
{{ m.role }}: {{ m.content }}
{% endfor %}"""


def with_template(model: Path, folder: Path, template: str | None) -> Path:
    """A copy of the model with another template, or with none."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config if template is None else {**config, "chat_template": template}))
    return folder


@pytest.fixture(scope="module")
def bare(null_model: Path, tmp_path_factory: pytest.TempPathFactory, send: Send) -> Iterator[Api]:
    """A model without a chat template."""
    with null_server(with_template(null_model, tmp_path_factory.mktemp("bare"), None)) as server:
        yield Api(server, send)


@pytest.fixture(scope="module")
def strict(null_model: Path, tmp_path_factory: pytest.TempPathFactory, send: Send) -> Iterator[Api]:
    """A model with `STRICT`."""
    with null_server(with_template(null_model, tmp_path_factory.mktemp("strict"), STRICT)) as server:
        yield Api(server, send)
        assert "Traceback" not in server.log()


# K04: no template, and templates that raise


def test_without_a_template_chat_is_a_400_and_completions_work(bare: Api) -> None:
    for stream in ({}, STREAM):
        reply = bare.ask("chat", "x", max_tokens=1, **stream)
        assert (reply.status, reply.error["param"]) == (400, "messages")
        assert "chat template" in reply.error["message"]
        assert bare.ask("completions", "x", max_tokens=1, **stream).status == 200
    assert bare.post("/tokenize", {"messages": [USER]}).error["param"] == "messages"
    assert bare.post("/tokenize", {"prompt": "x"}).status == 200


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([SYSTEM, SYSTEM, USER], "only one system message"),
        ([USER, USER], "roles must alternate"),
        ([USER, {"role": "assistant", "content": "y"}, {"role": "tool", "content": "z"}], "no tool role here"),
        pytest.param([{"role": "user", "content": "for ever"}], "", marks=pytest.mark.nightly),
        ([{"role": "user", "content": "escape"}], ""),
        ([{"role": "user", "content": "divide"}], "zero"),
        ([{"role": "user", "content": "undefined"}], ""),
    ],
    ids=["systems", "users", "tool", "for-ever", "escape", "divide", "undefined"],
)
def test_a_template_that_raises_is_a_400_with_its_message(strict: Api, messages: list[Any], says: str) -> None:
    replies = [strict.ask("chat", messages, max_tokens=1, **stream) for stream in ({}, STREAM, {"n": 2})]
    for reply in (*replies, strict.post("/tokenize", {"messages": messages})):
        assert (reply.status, reply.error["param"]) == (400, "messages"), reply.text
        assert says in reply.error["message"] and "class" not in reply.error["message"].replace("__class__", "")
    for prompt in ([USER], [SYSTEM, USER]):
        assert strict.ask("chat", prompt, max_tokens=1).status == 200


def test_a_template_with_a_syntax_error_is_said_at_the_start(null_model: Path, tmp_path: Path) -> None:
    folder = with_template(null_model, tmp_path / "model", "{% for m in messages %}{{ m.content }}")
    with pytest.raises(ServerFailed) as failed, null_server(folder):
        pass
    assert failed.value.status != 0
    assert "template" in failed.value.log and "Traceback" not in failed.value.log


# K05: content in parts


@pytest.fixture(scope="module")
def rendered(letters: Api) -> Any:
    """Prompt ids of messages, the same by each way of asking."""

    def ids(messages: list[Any]) -> list[int]:
        body = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        whole = letters.post("/v1/chat/completions", body)
        streamed = letters.post("/v1/chat/completions", {**body, **STREAM})
        counted = letters.post("/tokenize", {"messages": messages})
        assert whole.status == streamed.status == counted.status == 200, (whole.text, counted.text)
        found: list[int] = whole.json["prompt_token_ids"]
        assert found == counted.json["tokens"] == streamed.chunks[0]["prompt_token_ids"]
        assert usage_of(whole)["prompt_tokens"] == usage_of(streamed)["prompt_tokens"] == len(found)
        return found

    return ids


@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool", "developer", "critic"])
def test_one_part_is_the_same_as_a_text(rendered: Any, role: str) -> None:
    text, part = "ab\nc é", {"type": "text", "text": "ab\nc é"}
    expected = rendered([{"role": role, "content": text}, USER])
    assert rendered([{"role": role, "content": [part]}, USER]) == expected
    assert rendered([{"role": role, "content": [{**part, "extra": 1, "cache_control": None}]}, USER]) == expected
    lines = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c é"}]
    assert rendered([{"role": role, "content": lines}, USER]) == expected
    assert rendered([{"role": role, "content": []}, USER]) == rendered([{"role": role, "content": ""}, USER])


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_parts_that_are_no_text_are_refused_with_their_place(letters: Api, role: str) -> None:
    text = {"type": "text", "text": "a"}
    for part in (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "nonsense", "text": "a"},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": 5},
        {"type": 5},
        {"text": "a"},
        {},
        5,
        None,
        "a",
        [text],
    ):
        for messages in ([{"role": role, "content": [text, part]}], [USER, {"role": role, "content": [part]}]):
            for stream in (False, True):
                reply = letters.ask("chat", messages, max_tokens=1, stream=stream)
                assert reply.status == 400, (part, reply.text)
                assert reply.error["param"].startswith("messages"), part
            assert letters.post("/tokenize", {"messages": messages}).status == 400


# K07: histories with tool calls


def test_calls_of_earlier_turns_with_any_arguments(letters: Api) -> None:
    """Never a 500, and no call in the answer with tool_choice none."""
    contents: list[Any] = ["12:00", "", [{"type": "text", "text": "12:00"}], [], None]
    arguments = ("", "{}", "{bad", None, "[]", "5", '"x"', '{"a": NaN}', "{" * 2_000, {}, 5)
    cases = list(itertools.product(arguments, contents, (False, True)))

    def ask(case: Any) -> Any:
        given, content, stream = case
        call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": given}}
        messages = [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": content},
        ]
        return letters.ask("chat", messages, max_tokens=1, tool_choice="none", stream=stream, truncate_prompt_tokens=-1)

    for (given, _, stream), reply in zip(cases, at_once(ask, cases), strict=True):
        assert reply.status in (200, 400), (given, reply.text)
        if given in ("", "{}"):
            assert reply.status == 200
        if reply.status == 400:
            assert reply.error["param"].startswith("messages[1].tool_calls[0].function.arguments"), reply.text
        elif not stream:
            assert not reply.json["choices"][0]["message"].get("tool_calls")


def test_calls_that_are_none(letters: Api) -> None:
    """A wrong form is a 400 that names the message."""
    for calls in (5, "x", {}, [5], [{}], [{"id": 5}], [{"function": {}}], [{"function": {"name": 5}}], [None]):
        for content in (None, "x"):
            messages = [USER, {"role": "assistant", "content": content, "tool_calls": calls}]
            reply = letters.ask("chat", messages, max_tokens=1)
            assert (reply.status, reply.error["param"][:11]) == (400, "messages[1]"), (calls, reply.text)
    for choice in ("required", "nonsense", {}, {"type": "function", "function": {"name": "nope"}}, 5, []):
        reply = letters.ask("chat", "x", max_tokens=1, tool_choice=choice)
        assert reply.status == 400 and reply.error["param"].startswith("tool_choice"), choice
