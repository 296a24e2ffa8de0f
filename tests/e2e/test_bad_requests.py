"""Requests that cannot be served: the status, the OpenAI error body with the field, and a server that lives on."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.slow

LENGTH = 256
MAX_BYTES = 100_000
VOCABULARY = 49_152
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ServerProcess]:
    settings = (
        "process.worker.threads=1",  # threads that wait for each other are slow on a machine that has other work
        "model.served_name=smol",
        f"model.max_model_len={LENGTH}",
        f"server.max_request_bytes={MAX_BYTES}",
    )
    with ServerProcess(str(smollm2_gguf), *(word for setting in settings for word in ("--set", setting))) as server:
        yield server
        server.terminate()
        assert server.wait() == 0
        assert "server.unexpected_error" not in server.log()


@pytest.fixture(autouse=True)
def unharmed(server: ServerProcess, send: Callable[..., Any], wait_idle: Callable[[str], None]) -> Iterator[None]:
    """After each test the server is idle, healthy, and serves a good request."""
    yield
    wait_idle(server.url)
    assert send(server.url + "/health").status == send(server.url + "/ready").status == 200
    good = send(server.url + "/v1/completions", {"model": "smol", "prompt": [1, 2, 3], "max_tokens": 1})
    assert good.status == 200 and good.json["usage"]["completion_tokens"] == 1
    wait_idle(server.url)


@pytest.fixture
def completions(server: ServerProcess, send: Callable[..., Any]) -> Callable[..., Any]:
    return lambda body, **rest: send(server.url + "/v1/completions", body, **rest)


@pytest.fixture
def chat(server: ServerProcess, send: Callable[..., Any]) -> Callable[..., Any]:
    return lambda body, **rest: send(server.url + "/v1/chat/completions", body, **rest)


# Bodies


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": NaN}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800", "max_tokens": 1}',
        b"[" * 50_000,
        b'{"prompt": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        '{"prompt": "a"}'.encode("utf-16"),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_no_json_object(completions: Callable[..., Any], chat: Callable[..., Any], body: bytes) -> None:
    for reply in (completions(body), chat(body)):
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"


def test_a_body_that_is_too_large(completions: Callable[..., Any]) -> None:
    reply = completions({"prompt": "a" * MAX_BYTES})
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert f"{MAX_BYTES:,}" in reply.error["message"]


def test_a_body_that_is_not_what_its_encoding_says(completions: Callable[..., Any]) -> None:
    reply = completions(b'{"prompt": "a"}', headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.error["code"]) == (400, "invalid_body")
    assert "\n" not in reply.error["message"]


def test_a_request_that_breaks_off(server: ServerProcess) -> None:
    """The head promises more than comes."""
    address = urlsplit(server.url)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    for half in (head[:30], head, head + b'{"prompt": "a'):
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(half)


# Prompts


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([1, 2, 99_999_999], "99999999"),
        ([VOCABULARY], f"{VOCABULARY}"),
        ([-1], "-1"),
        ([1.5], "float"),
        (["1"], "'1'"),
        ([True], "bool"),
        ([None], "null"),
        ([[1], []], "prompt[1] must not be empty"),
        ([9_223_372_036_854_775_808], "9223372036854775808"),
        ([2**70], "prompt"),
        ([], "empty"),
        ("", "empty"),
        (None, "prompt"),
        (5, "text, token ids, or a list of prompts"),
        ({"a": 1}, "text, token ids, or a list of prompts"),
        (["a", ""], "prompt[1] must not be empty"),
        (["a", [VOCABULARY]], f"{VOCABULARY}"),
        ([[5] * 300, "a"], "300"),
        (["a"] * 1025, "1,025"),
    ],
    ids=repr,
)
def test_a_prompt_that_is_none(completions: Callable[..., Any], prompt: object, says: str) -> None:
    for stream in (False, True):
        reply = completions({"prompt": prompt, "max_tokens": 1, "stream": stream})
        assert reply.status == 400
        assert reply.error["param"].startswith("prompt") and says in reply.error["message"]


def test_no_prompt(completions: Callable[..., Any], chat: Callable[..., Any]) -> None:
    for reply, field in ((completions({"max_tokens": 1}), "prompt"), (chat({"max_tokens": 1}), "messages")):
        assert reply.status == 400 and field in reply.error["message"]


def test_the_last_id_of_the_vocabulary_is_served(completions: Callable[..., Any]) -> None:
    assert completions({"prompt": [VOCABULARY - 1], "max_tokens": 1}).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(
    completions: Callable[..., Any], chat: Callable[..., Any], send: Callable[..., Any], stream: bool
) -> None:
    """As text, as chat, as ids; `hello ` 400 times is 401 tokens."""
    text, rest = "hello " * 400, {"max_tokens": 1, "stream": stream}
    messages = [{"role": "user", "content": text}]
    replies = (
        (completions({"prompt": text, **rest}), "401", "prompt"),
        (completions({"prompt": [5] * 999, **rest}), "999", "prompt"),
        (chat({"messages": messages, **rest}), "431", "messages"),
    )
    for reply, number, field in replies:
        assert (reply.status, reply.error["param"]) == (400, field)
        assert reply.error["code"] == "context_length_exceeded"
        assert number in reply.error["message"] and f"{LENGTH - 1}" in reply.error["message"]


def test_prompt_and_max_tokens_against_the_length(completions: Callable[..., Any], chat: Callable[..., Any]) -> None:
    def ids(num_tokens: int, max_tokens: int | None) -> Any:
        more = {} if max_tokens is None else {"max_tokens": max_tokens}
        return completions({"prompt": [5] * num_tokens, "ignore_eos": True, "temperature": 0, **more})

    for num_tokens, max_tokens, expected in ((LENGTH - 1, 1, 1), (LENGTH - 8, 8, 8), (LENGTH - 8, None, 8)):
        reply = ids(num_tokens, max_tokens)
        assert reply.status == 200
        assert reply.json["usage"]["completion_tokens"] == expected
        assert reply.json["choices"][0]["finish_reason"] == "length"
    for num_tokens, max_tokens in ((LENGTH, 1), (LENGTH + 1, 1), (LENGTH - 8, 9), (5, 2**31), (5, 2**70)):
        error = ids(num_tokens, max_tokens).error
        assert error["code"] == "context_length_exceeded"
        assert f"{LENGTH}" in error["message"]
        assert f"{num_tokens}" in error["message"] or f"{max_tokens}" in error["message"]
    reply = chat({**CHAT, "max_tokens": LENGTH - 3})
    assert reply.status == 400 and f"{LENGTH - 3}" in reply.error["message"] and f"{LENGTH}" in reply.error["message"]


# Fields


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("messages", [5, [5], [], [{}], [{"role": "user", "content": 7}], [{"role": "user", "content": [{}]}]]),
        ("tools", [5, [5]]),
        ("tool_choice", [5]),
        ("stop", [5, [5], [""], ["a"] * 5000, "a" * 5000]),
        ("n", ["x", 0, -1, 129, 100_000]),
        ("temperature", ["hot", -1, 2.5e9]),
        ("top_p", [1.5, -0.1, "x"]),
        ("top_k", [1.5, -2, 2**70]),
        ("min_p", [1.1, -0.1]),
        ("max_tokens", [-5, 0, 1.5, "9"]),
        ("max_completion_tokens", [-5, 0, "9"]),
        ("logprobs", [7]),
        ("top_logprobs", [-1, 21, 2]),
        ("seed", [2**64, 2**63, -(2**63) - 1, "1", 1.5]),
        ("response_format", [5, {"type": "json_schema"}, {"type": "nonsense"}]),
        ("response_format", [{"type": "json_schema", "schema": {"type": "object"}}, {}]),
        ("response_format", [{"type": "json_schema", "json_schema": {"name": "a"}}]),
        ("stream", ["yes"]),
        ("stream_options", [[], {"include_usage": True}]),
        ("logit_bias", [{"10000000": -100}, {"abc": 1}, {"5": "x"}, {"-1": 1}, {f"{VOCABULARY}": 1}, {"1.5": 1}, 5]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_is_wrong(chat: Callable[..., Any], field: str, values: list[object]) -> None:
    for value in values:
        reply = chat({**CHAT, field: value})
        assert reply.status == 400, value
        assert (reply.error["param"] or "").startswith(field) and field in reply.error["message"], value
        if field == "logit_bias" and isinstance(value, dict):
            assert next(iter(value)) in reply.error["message"]


def test_a_number_out_of_range(chat: Callable[..., Any]) -> None:
    for field in ("temperature", "max_tokens", "seed"):
        reply = chat(json.dumps(CHAT)[:-1].encode() + f', "{field}": 1e400}}'.encode())
        assert (reply.status, reply.error["param"]) == (400, field)
    bias = chat(json.dumps(CHAT)[:-1].encode() + b', "logit_bias": {"5": 1e400}}')
    assert (bias.status, bias.error["param"]) == (400, "logit_bias.5")


WRONG_AT_BOTH: list[tuple[str, list[object]]] = [
    ("presence_penalty", [2.1, -2.1, "x"]),
    ("frequency_penalty", [2.1, -2.1, "x"]),
    ("repetition_penalty", [0, -1, 101, "x"]),
    ("min_tokens", [2, -1, 1.5]),
    ("stop_token_ids", [[VOCABULARY], [-1], ["1"], 5]),
    ("allowed_token_ids", [[], [VOCABULARY], [-1], [1.5]]),
    ("bad_words", [[""], "a", [5], ["x" * 257]]),
    ("include_stop_str_in_output", [1, "yes"]),
    ("skip_special_tokens", [0, "no"]),
    ("prompt_logprobs", [-1, 21, True]),
    ("logprobs_mode", ["raw", 5]),
    ("truncate_prompt_tokens", [0, -2, LENGTH, "5"]),
    ("repetition_detection", [5, {}, {"max_pattern_size": 4, "min_count": 1}, {"max_pattern_size": 1025}]),
    ("add_special_tokens", [5, "yes"]),
    ("cache_salt", ["", 5, "s" * 1025]),
    ("priority", [1, -1, "x"]),
    ("return_token_ids", [1, "yes"]),
    ("return_tokens_as_token_ids", [1, "yes"]),
    ("best_of", [2, 0, "x"]),
    ("echo", [5, "yes"]),
]
WRONG_IN_CHAT: list[tuple[str, list[object]]] = [
    ("continue_final_message", [1, "x"]),
    ("add_generation_prompt", [0, "x"]),
    ("chat_template_kwargs", [5, [], {"messages": []}, {"chat_template": "{{ x }}"}]),
    ("documents", [5, [5]]),
    ("chat_template", ["{{ x }}"]),
]
WRONG_IN_COMPLETIONS: list[tuple[str, list[object]]] = [
    ("logprobs", [-1, 21, "x", 1.5]),
    ("suffix", ["x"]),
    ("max_tokens", [0, -1]),
]


@pytest.mark.parametrize("stream", [False, True])
def test_wrong_values_of_the_other_fields(
    chat: Callable[..., Any], completions: Callable[..., Any], stream: bool
) -> None:
    """A refusal comes before the stream: a status and a body, streamed or not."""
    text = {"prompt": "a", "max_tokens": 1, "stream": stream}
    for ask, body, table in (
        (chat, {**CHAT, "stream": stream}, WRONG_AT_BOTH + WRONG_IN_CHAT),
        (completions, text, WRONG_AT_BOTH + WRONG_IN_COMPLETIONS),
    ):
        for field, values in table:
            for value in values:
                reply = ask({**body, field: value})
                assert reply.status == 400, (field, value)
                assert reply.error["param"].startswith(field) and field in reply.error["message"], (field, value)
                if value == [VOCABULARY]:
                    assert f"{VOCABULARY}" in reply.error["message"]


def test_what_is_counted_over_several_fields(completions: Callable[..., Any]) -> None:
    """Prompts times n; entries of all lists; log-probabilities of the prompt times choices and tops."""
    for fields, param in (
        ({"prompt": ["a"] * 9, "n": 128}, "prompt"),
        ({"prompt": "a", "allowed_token_ids": [*range(4096)], "stop_token_ids": [1]}, "allowed_token_ids"),
        ({"prompt": "a", "n": 64, "prompt_logprobs": 2}, "prompt_logprobs"),
        ({"prompt": "a", "n": 128, "logprobs": 1, "echo": True}, "prompt_logprobs"),
    ):
        reply = completions({"max_tokens": 1, **fields})
        assert (reply.status, reply.error["param"]) == (400, param), reply.text


def test_values_at_the_ends_of_their_ranges_are_taken(chat: Callable[..., Any]) -> None:
    """0 for top_p is greedy, a bias beyond 100 counts as 100, and the last id of the vocabulary has one."""
    last = str(VOCABULARY - 1)
    for fields in (
        {"top_p": 0}, {"top_p": 1}, {"top_k": -1}, {"top_k": 0}, {"top_k": 2**31 - 1}, {"min_p": 1},
        {"temperature": 100}, {"cache_salt": "s" * 1024},
        {"logit_bias": {last: 101}}, {"logit_bias": {last: -1e9}}, {"presence_penalty": -2, "frequency_penalty": 2},
        {"repetition_penalty": 0.01}, {"repetition_penalty": 100}, {"stop": ["x" * 256] * 4}, {"n": 1, "best_of": 1},
        {"stop_token_ids": [VOCABULARY - 1]}, {"allowed_token_ids": [VOCABULARY - 1]}, {"min_tokens": 1},
        {"truncate_prompt_tokens": 1}, {"truncate_prompt_tokens": -1}, {"prompt_logprobs": 20},
        {"repetition_detection": {"max_pattern_size": 0}}, {"documents": []}, {"chat_template_kwargs": {}},
    ):  # fmt: skip
        reply = chat({**CHAT, **fields})
        assert reply.status == 200, (fields, reply.text)
        assert reply.json["usage"]["completion_tokens"] == 1


def test_seeds_at_the_ends_of_their_range(completions: Callable[..., Any]) -> None:
    for seed in (2**63 - 1, -(2**63), 0, -1):
        first, second = (completions({"prompt": "a", "max_tokens": 2, "seed": seed}) for _ in range(2))
        assert first.status == 200
        assert first.json["choices"][0]["text"] == second.json["choices"][0]["text"]


def test_fields_and_messages_of_other_clients_are_taken(chat: Callable[..., Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply = chat(
        {
            "model": "smol",
            "messages": [
                {"role": "user", "content": "x", "name": "bob", "foo": 1},
                {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            ],
            "user": "u",
            "store": False,
            "metadata": {"a": "b"},
            "parallel_tool_calls": True,
            "service_tier": "auto",
            "foo": {"bar": 1},
            "max_completion_tokens": 2,
        }
    )
    assert reply.status == 200, reply.text
    assert len(reply.json["choices"]) == 1 and reply.json["usage"]["completion_tokens"] <= 2
    assert reply.headers["x-ignored-fields"] == "foo, messages%5B0%5D.foo"


# Paths


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/", 404, "'/'"),
        ("POST", "/v1/nope", 404, "'/v1/nope'"),
        ("GET", "/v1/completions", 405, "allowed: POST"),
        ("PUT", "/v1/chat/completions", 405, "allowed: POST"),
        ("POST", "/v1/models", 405, "allowed: GET, HEAD"),
        ("GET", "/v1/models/other", 404, "'other'"),
    ],
)
def test_a_path_or_method_that_is_not_there(
    server: ServerProcess, send: Callable[..., Any], method: str, path: str, status: int, says: str
) -> None:
    reply = send(server.url + path, b"{}" if method in ("POST", "PUT") else None, method=method)
    assert reply.status == status and says in reply.error["message"]


def test_a_model_that_is_not_served(completions: Callable[..., Any]) -> None:
    reply = completions({"model": "other", "prompt": "a"})
    assert (reply.status, reply.error["param"], reply.error["code"]) == (404, "model", "model_not_found")
    assert "'smol'" in reply.error["message"]
