"""Answers that are not streamed, and the service endpoints."""

from __future__ import annotations

import re

import pytest
from fake_frontend import MAX_MODEL_LEN, MODEL, delta, finish
from prometheus_client.parser import text_string_to_metric_families

from callboard import __version__
from callboard.actors.frontend_api import Health
from callboard.mailbox.messages.requests import TokenText
from callboard.scheduling.statistics import SchedulerStatistics

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
}
TOKENS = [
    TokenText("He", b"He", -0.5, [("He", b"He", -0.5), ("Ha", b"Ha", float("-inf"))]),
    TokenText("\ufffd", b"\xc3", -1.5, [("x", b"x", -0.25)]),
    TokenText("\ufffd", b"\xb6", -2.0, []),
]


async def post(http, url, path, **body):
    async with http.post(url + path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "application/json"
        return await response.json()


async def test_chat(serve, http, frontend):
    answer = await post(http, await serve(), "/v1/chat/completions", **CHAT)
    assert answer.pop("id") == frontend.streams[0].request_id
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello wörld", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": USAGE,
    }
    assert frontend.streams[0].num_closes > 0


async def test_completion_with_token_ids(serve, http):
    answer = await post(http, await serve(), "/v1/completions", prompt="hi", return_token_ids=True)
    assert re.fullmatch("cmpl-[0-9a-f]{32}", answer["id"])
    assert answer["object"] == "text_completion"
    choice = answer["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["prompt_token_ids"]) == (
        "Hello wörld",
        [1, 2, 3],
        [7, 8, 9, 10, 11],
    )
    assert answer["usage"] == USAGE
    chat = await post(http, await serve(), "/v1/chat/completions", **CHAT, return_token_ids=True)
    assert (chat["prompt_token_ids"], chat["choices"][0]["token_ids"]) == ([7, 8, 9, 10, 11], [1, 2, 3])


def with_logprobs(stream):
    stream.push(
        delta("He", [1], logprobs=TOKENS[:1]), delta("ö", [2, 3], logprobs=TOKENS[1:], end=finish("length"), position=1)
    )


async def test_chat_logprobs(serve, http, frontend):
    frontend.script = with_logprobs
    answer = await post(http, await serve(), "/v1/chat/completions", **CHAT, logprobs=True, top_logprobs=2)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "He",
                "logprob": -0.5,
                "bytes": [72, 101],
                "top_logprobs": [
                    {"token": "He", "logprob": -0.5, "bytes": [72, 101]},
                    {"token": "Ha", "logprob": -9999.0, "bytes": [72, 97]},
                ],
            },
            {
                "token": "\ufffd",
                "logprob": -1.5,
                "bytes": [0xC3],
                "top_logprobs": [{"token": "x", "logprob": -0.25, "bytes": [120]}],
            },
            {"token": "\ufffd", "logprob": -2.0, "bytes": [0xB6], "top_logprobs": []},
        ]
    }


async def test_completion_logprobs(serve, http, frontend):
    frontend.script = with_logprobs
    answer = await post(http, await serve(), "/v1/completions", prompt="hi", logprobs=2)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["He", "\ufffd", "\ufffd"],
        "token_logprobs": [-0.5, -1.5, -2.0],
        "top_logprobs": [{"He": -0.5, "Ha": -9999.0}, {"x": -0.25, "\ufffd": -1.5}, {"\ufffd": -2.0}],
        "text_offset": [0, 2, 3],
    }


async def test_request_ids(serve, http):
    url = await serve()
    for path, body in [("/v1/completions", {"prompt": "a"}), ("/v1/completions", {"prompt": "a", "stream": True})]:
        async with http.post(url + path, json=body, headers={"X-Request-Id": "abc-1"}) as response:
            assert response.headers.getall("X-Request-Id") == ["abc-1"]
    for bad in ("x" * 129, "a b", "é"):
        async with http.post(url + "/v1/completions", json={"prompt": 5}, headers={"X-Request-Id": bad}) as response:
            assert response.status == 400
            assert re.fullmatch("[0-9a-f]{32}", response.headers["X-Request-Id"])
    async with http.get(url + "/health") as response:
        assert response.headers["X-Request-Id"]


async def test_requests_with_the_same_id_header_are_different_requests(serve, http, frontend):
    url = await serve()
    for _ in range(2):
        async with http.post(url + "/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "same"}):
            pass
    assert len({stream.request_id for stream in frontend.streams}) == 2


async def get(http, url):
    async with http.get(url) as response:
        return response.status, await response.json()


async def test_models(serve, http):
    url = await serve()
    status, answer = await get(http, url + "/v1/models")
    assert (status, answer["object"], len(answer["data"])) == (200, "list", 1)
    assert {key: answer["data"][0][key] for key in ("id", "object", "owned_by", "max_model_len")} == {
        "id": MODEL,
        "object": "model",
        "owned_by": "callboard",
        "max_model_len": MAX_MODEL_LEN,
    }
    assert await get(http, url + "/v1/models/" + MODEL) == (200, answer["data"][0])
    status, answer = await get(http, url + "/v1/models/other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_startup_says_what_each_actor_does_and_how_long_its_start_took(serve, http):
    status, answer = await get(http, await serve() + "/startup")
    assert status == 200
    assert answer["actors"] == [
        {"actor": "scheduler", "phase": "serving", "seconds": {"starting": 0.5}},
        {"actor": "worker", "phase": "loading", "seconds": {"starting": 2.0}},
    ]


async def test_health_and_readiness(serve, http, frontend):
    url = await serve()
    assert (await get(http, url + "/health"))[0] == 200
    assert (await get(http, url + "/ready"))[0] == 200
    frontend.health_now = Health(True, False, "the worker is being restarted")
    assert (await get(http, url + "/health"))[0] == 200
    assert await get(http, url + "/ready") == (
        503,
        {"status": "not ready", "reason": "the worker is being restarted"},
    )
    frontend.health_now = Health(False, False, "the scheduler is gone")
    status, answer = await get(http, url + "/health")
    assert (status, answer["reason"]) == (503, "the scheduler is gone")


async def test_version_and_unknown_paths(serve, http):
    url = await serve()
    assert await get(http, url + "/version") == (200, {"version": __version__})
    status, answer = await get(http, url + "/v1/embeddings")
    assert (status, set(answer["error"])) == (404, {"message", "type", "param", "code"})
    assert answer["error"]["message"] == "there is no '/v1/embeddings' here; GET /openapi.json lists what there is"
    async with http.get(url + "/v1/completions") as response:
        assert response.status == 405
        assert "POST" in response.headers["Allow"]
        error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"] == "GET is not allowed at '/v1/completions'; allowed: POST"


async def test_api_keys(serve, http, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\n\nsecond\n")
    url = await serve(api_keys_file=str(keys))
    for headers, status in [
        ({}, 401),
        ({"Authorization": "Bearer third"}, 401),
        ({"Authorization": "second"}, 401),
        ({"Authorization": "Bearer second"}, 200),
        ({"Authorization": "bearer first"}, 200),
    ]:
        async with http.get(url + "/v1/models", headers=headers) as response:
            assert response.status == status
    async with http.get(url + "/health") as response:
        assert response.status == 200


async def samples(http, url):
    async with http.get(url + "/metrics") as response:
        assert response.status == 200
        text = await response.text()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_engine_metrics(serve, http, frontend):
    frontend.statistics = SchedulerStatistics(
        num_running=3, num_waiting=4, num_blocks=8, num_free_blocks=6, num_preemptions=5, prompt_tokens=100,
        generation_tokens=50, prefix_cache_queries=90, prefix_cache_hits=32, num_steps=20, num_steady_steps=15,
        num_overlapped_steps=14, num_paused=2, num_timed_out=6,
    )  # fmt: skip
    metrics = await samples(http, await serve())
    expected = {
        "num_requests_running": 3, "num_requests_waiting": 4, "kv_cache_usage_perc": 0.25, "num_preemptions_total": 5,
        "prompt_tokens_total": 100, "generation_tokens_total": 50, "prefix_cache_queries_total": 90,
        "prefix_cache_hits_total": 32, "steps_total": 20, "steady_steps_total": 15, "overlapped_steps_total": 14,
        "num_sessions_paused": 2, "timed_out_requests_total": 6,
    }  # fmt: skip
    assert {name: metrics["callboard:" + name,] for name in expected} == expected


@pytest.mark.parametrize("streams", [True, False])
async def test_request_metrics(serve, http, frontend, streams):
    """One TTFT a request with a token, N - 1 intervals for N tokens, one E2E and one reason a request."""
    url = await serve()
    body = {"prompt": "a", "stream": streams}

    async def send(script, **more):
        frontend.script = script
        async with http.post(url + "/v1/completions", json={**body, **more}) as response:
            await response.read()

    for reason in ("stop", "length", "length"):
        await send(
            lambda stream, reason=reason: stream.push(
                delta("a", [1]), delta("bcd", [2, 3, 4]), delta("e", [5], end=finish(reason))
            )
        )
    await send(lambda stream: stream.push(delta(end=finish("error", message="no"))))
    await send(lambda stream: stream.push(delta("a", [1, 2], end=finish("stop"))), temperature="bad")
    metrics = await samples(http, url)
    assert metrics["callboard:time_to_first_token_seconds_count",] == 3
    assert metrics["callboard:inter_token_latency_seconds_count",] == 3 * 4
    assert metrics["callboard:e2e_request_latency_seconds_count",] == 4
    assert metrics["callboard:time_to_first_token_seconds_bucket", "+Inf"] == 3
    reasons = {key[1]: value for key, value in metrics.items() if key[0] == "callboard:request_success_total"}
    assert reasons == {"stop": 1, "length": 2, "repetition": 0, "timeout": 0, "abort": 0, "error": 1}
