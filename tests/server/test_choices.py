"""`n`: several choices of one request, streaming and not. The grammar of their streams is in test_chunk_grammar.py."""

from __future__ import annotations

import openai
import pytest
from fake_frontend import MODEL, delta, events_of, finish, hello
from prometheus_client.parser import text_string_to_metric_families

from callboard.errors import EngineFailure
from callboard.server.request_fields import MAX_CHOICES

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": MODEL, "prompt": "hi"}
ENDPOINTS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]


def text_of(choice):
    if "text" in choice:
        return choice["text"]
    return choice["message"]["content"] if "message" in choice else choice["delta"].get("content", "")


def mixed(stream):
    """The last choice ends first; every choice has a text of its own."""
    last = stream.num_choices - 1
    for choice in range(stream.num_choices):
        stream.push(delta(f"<{choice}", [choice], choice=choice))
    for choice in range(last, -1, -1):
        reason = "length" if choice == last else "stop"
        stream.push(delta(">", [7, 8], choice=choice, position=1, end=finish(reason, 3, cached_tokens=choice + 2)))


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_whole_answers_have_the_choices_in_order(serve, http, frontend, path, body):
    frontend.script = mixed
    url = await serve()
    for n in (1, 2, MAX_CHOICES):
        async with http.post(url + path, json={**body, "n": n, "temperature": 0, "return_token_ids": True}) as response:
            answer = await response.json()
        assert frontend.streams[-1].num_choices == n
        assert [choice["index"] for choice in answer["choices"]] == list(range(n))
        assert [text_of(choice) for choice in answer["choices"]] == [f"<{choice}>" for choice in range(n)]
        assert [choice["token_ids"] for choice in answer["choices"]] == [[choice, 7, 8] for choice in range(n)]
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * (n - 1) + ["length"]
        assert answer["usage"] == {
            "prompt_tokens": 5,
            "completion_tokens": 3 * n,
            "total_tokens": 5 + 3 * n,
            "prompt_tokens_details": {"cached_tokens": 2},
        }


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_without_n_there_is_one_choice(serve, http, frontend, path, body):
    url = await serve()
    for more in ({}, {"n": None}, {"n": 1}):
        async with http.post(url + path, json={**body, **more}) as response:
            assert len((await response.json())["choices"]) == 1
    assert [stream.num_choices for stream in frontend.streams] == [1, 1, 1]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_a_stream_of_several_choices(serve, http, frontend, path, body):
    frontend.script = mixed
    more = {"n": 3, "stream": True, "stream_options": {"include_usage": True}}
    async with http.post(await serve() + path, json={**body, **more}) as response:
        events = events_of(await response.read())
    assert events.pop() == "[DONE]"
    assert events.pop()["usage"]["completion_tokens"] == 9
    choices = [event["choices"][0] for event in events]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(map(text_of, own)) == f"<{index}>"
        assert [choice["finish_reason"] is None for choice in own] == [True] * (len(own) - 1) + [False]
        if "chat" in path:
            assert [choice["delta"].get("role") for choice in own] == ["assistant", None, None]
    assert [choice["index"] for choice in choices if choice["finish_reason"] is not None] == [2, 1, 0]
    await frontend.streams[0].closed.wait()


@pytest.mark.parametrize(
    "last", [EngineFailure("the worker died"), delta(end=finish("error", message="the worker died"), choice=1)]
)
async def test_an_error_of_one_choice_ends_all(serve, http, frontend, last):
    frontend.script = lambda stream: stream.push(
        delta("a", [1]), delta("b", [1], choice=1), delta("c", [2], end=finish(), position=1), last
    )
    url = await serve()
    async with http.post(url + "/v1/completions", json={**COMPLETION, "n": 2, "stream": True}) as response:
        events = events_of(await response.read())
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["message"] == "the worker died"
    assert [event["choices"][0]["finish_reason"] for event in events[:-2]] == [None, None, "stop"]
    async with http.post(url + "/v1/completions", json={**COMPLETION, "n": 2}) as response:
        assert response.status == 500
    assert all(stream.closed.is_set() for stream in frontend.streams)


async def test_a_stream_that_lacks_a_choice_is_a_failure(serve, http, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1], end=finish()), StopAsyncIteration())
    async with http.post(await serve() + "/v1/completions", json={**COMPLETION, "n": 2}) as response:
        assert response.status == 500


async def test_the_sdk(serve, frontend):
    frontend.script = mixed
    async with openai.AsyncOpenAI(base_url=await serve() + "/v1", api_key="none", max_retries=0) as sdk:
        answer = await sdk.chat.completions.create(**CHAT, n=2)
        assert [choice.message.content for choice in answer.choices] == ["<0>", "<1>"]
        texts = ["", ""]
        async for chunk in await sdk.chat.completions.create(**CHAT, n=2, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert texts == ["<0>", "<1>"]
        frontend.script = hello
        async with sdk.chat.completions.stream(**CHAT, n=2) as stream:
            final = await stream.get_final_completion()
        assert [choice.message.content for choice in final.choices] == ["Hello wörld"] * 2


@pytest.mark.parametrize("streams", [True, False])
async def test_metrics_count_a_request_once(serve, http, frontend, streams):
    """One TTFT and one E2E a request, N - 1 intervals a choice, the reason of the choice that ends last."""
    frontend.script = mixed
    url = await serve()
    async with http.post(url + "/v1/completions", json={**COMPLETION, "n": 3, "stream": streams}) as response:
        await response.read()
    async with http.get(url + "/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    samples = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
    assert samples["callboard:time_to_first_token_seconds_count",] == 1
    assert samples["callboard:inter_token_latency_seconds_count",] == 3 * 2
    assert samples["callboard:e2e_request_latency_seconds_count",] == 1
    assert samples["callboard:request_success_total", "stop"] == 1
    assert samples["callboard:request_success_total", "length"] == 0
