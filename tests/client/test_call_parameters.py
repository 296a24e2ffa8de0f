"""What a call sends: fields under their own names, headers, and what is refused before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from raw_server import answer, events, piece

from callboard.client import AsyncClient, ChatParams, CompletionParams
from callboard.client.params import CALL_NAMES
from callboard.server.unsupported_fields import NO_EFFECT, UNSUPPORTED

MESSAGES = [{"role": "user", "content": "hi"}]
VALUES = {
    "model": "m",
    "max_tokens": 3,
    "n": 1,
    "best_of": 1,
    "seed": -1,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 4,
    "min_p": 0.1,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "repetition_penalty": 1.1,
    "logit_bias": {"7": 2.5},
    "allowed_token_ids": [1, 2],
    "bad_words": ["bad"],
    "min_tokens": 1,
    "stop": ["x", "y"],
    "stop_token_ids": [9],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
    "prompt_logprobs": 2,
    "logprobs_mode": "processed_logprobs",
    "return_token_ids": False,
    "return_tokens_as_token_ids": True,
    "truncate_prompt_tokens": 5,
    "add_special_tokens": False,
    "priority": -2,
    "tenant": "t",
    "deadline_ms": 1500.5,
    "cache_salt": "s",
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a"},
    "user": "u",
    "echo": True,
}
CHAT_VALUES = {
    "max_completion_tokens": 4,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
    "include_reasoning": True,
    "logprobs": True,
    "top_logprobs": 2,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template_kwargs": {"thinking": True},
    "documents": [{"title": "t", "text": "x"}],
}
COMPLETION_VALUES = {"logprobs": 3, "suffix": "z"}


async def read(stream):
    return [delta async for delta in stream]


async def sent(raw, stream):
    raw.answers = [answer(events(piece("a", "stop")))]
    await read(stream)
    return raw.requests[-1].json


async def test_every_field_goes_out_under_its_own_name(raw, raw_client):
    chat = {**VALUES, **CHAT_VALUES}
    assert set(chat) == ChatParams.__optional_keys__ - CALL_NAMES - {"stream_options"}
    body = await sent(raw, raw_client.chat(MESSAGES, **chat))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert body == {"messages": MESSAGES, **chat, **options}
    assert raw.requests[-1].path == "/v1/chat/completions"

    completion = {**VALUES, **COMPLETION_VALUES}
    assert set(completion) == CompletionParams.__optional_keys__ - CALL_NAMES - {"stream_options"}
    body = await sent(raw, raw_client.complete("hi", **completion))
    assert body == {"prompt": "hi", **completion, **options}
    assert raw.requests[-1].path == "/v1/completions"


def test_the_names_are_those_of_the_api():
    """Every name stands in the API's page, but the way in which log-probabilities are named by vLLM."""
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    names = (ChatParams.__optional_keys__ | CompletionParams.__optional_keys__) - CALL_NAMES
    unknown = {name for name in names if f"`{name}`" not in page and name not in UNSUPPORTED and name not in NO_EFFECT}
    assert unknown <= {"logprobs_mode"}


async def test_none_is_the_default_and_extra_goes_as_it_is(raw, raw_client):
    body = await sent(raw, raw_client.complete([1, 2], temperature=None, extra={"tools": None, "top_k": 3}, top_k=1))
    assert body == {
        "prompt": [1, 2],
        "return_token_ids": True,
        "tools": None,
        "top_k": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_stream_options_are_kept(raw, raw_client):
    body = await sent(raw, raw_client.complete("x", stream_options={"continuous_usage_stats": True}))
    assert body["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


async def test_a_whole_answer_is_asked_for_without_a_stream(raw, raw_client):
    raw.answers = [answer({"id": "x", "choices": [{"text": "a", "finish_reason": "stop"}]})]
    await raw_client.complete_whole("x", max_tokens=1, stream_options={"continuous_usage_stats": True})
    assert raw.requests[0].json == {"prompt": "x", "max_tokens": 1, "return_token_ids": True, "stream": False}


async def test_arrays_and_tuples_are_lists(raw, raw_client):
    body = await sent(
        raw, raw_client.complete(np.array([1, 2, 3]), stop=("a",), logit_bias={5: np.float32(0.5)}, stop_token_ids={8})
    )
    assert (body["prompt"], body["stop"], body["logit_bias"], body["stop_token_ids"]) == (
        [1, 2, 3],
        ["a"],
        {"5": 0.5},
        [8],
    )


async def test_a_matrix_is_a_list_of_prompts_and_bytes_are_no_text(raw, raw_client):
    raw.answers = [answer(events(piece("a", "stop", 1), piece("b", "stop", 0)))]
    got = await raw_client.complete(np.array([[1], [2]])).answer()
    assert [choice.text for choice in got.choices] == ["b", "a"]
    with pytest.raises(TypeError, match="prompt is bytes"):
        raw_client.complete(b"abc")


async def test_headers(raw):
    async with AsyncClient(raw.url, "key", headers={"X-Team": "a", "X-Other": "b"}) as client:
        await sent(raw, client.complete("x", request_id="r-1", headers={"X-Team": "c"}))
    got = raw.requests[0].headers
    assert [got[name] for name in ("authorization", "x-request-id", "x-team", "x-other")] == [
        "Bearer key",
        "r-1",
        "c",
        "b",
    ]
    assert got["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("name", "hint"), [("max_token", "did you mean 'max_tokens'"), ("xyzzy", "extra="), ("messages", "extra=")]
)
async def test_an_unknown_name_is_a_type_error(raw, raw_client, name, hint):
    with pytest.raises(TypeError, match=hint):
        raw_client.complete("x", **{name: 1})
    with pytest.raises(TypeError, match=hint if name != "messages" else "multiple values"):
        await raw_client.chat_whole(MESSAGES, **{name: 1})
    assert raw.requests == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_number_that_json_has_not_is_refused_and_not_sent_as_null(raw_client, value):
    with pytest.raises(ValueError, match="temperature"):
        raw_client.complete("x", temperature=value)


async def test_what_is_no_json_is_refused(raw_client):
    with pytest.raises(TypeError, match="object"):
        raw_client.complete("x", extra={"a": object()})


async def test_the_head_of_a_stream(raw, raw_client):
    raw.answers = [answer(events(piece("a", "stop")), X_Request_Id="r-9", x_ignored_fields="tmperature, a%2Cb")]
    stream = raw_client.complete("x", extra={"tmperature": 1})
    await read(stream)
    assert (stream.head.request_id, stream.head.ignored_fields) == ("r-9", ("tmperature", "a,b"))


async def test_a_real_server_takes_the_request_id_and_names_ignored_fields(serve):
    async with AsyncClient(await serve()) as client:
        got = await client.chat_whole(MESSAGES, request_id="r-2", extra={"tmperature": 1, "a,b": 2})
        assert got.ignored_fields == ("tmperature", "a,b")
        stream = client.chat(MESSAGES, request_id="r-3")
        assert (await stream.answer()).text == "Hello wörld"
        assert stream.head.request_id == "r-3"


def test_bodies_are_json(raw_client):
    from callboard.client.json_body import encode_body

    assert json.loads(encode_body({"a": "wörld", "b": (1, 2)})) == {"a": "wörld", "b": [1, 2]}
