"""The official client, against a real connection."""

from __future__ import annotations

import asyncio

import openai
import pytest
from fake_frontend import MODEL, delta, finish

from callboard.errors import InvalidRequest, Overloaded

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def sdk(serve):
    async with openai.AsyncOpenAI(base_url=await serve() + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_async_chat(sdk):
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, user="u", store=False)
    assert answer.choices[0].message.content == "Hello wörld"
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello wörld"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.total_tokens == 8


async def test_the_stream_helper(sdk):
    async with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        text = "".join([event.delta async for event in stream if event.type == "content.delta"])
        final = await stream.get_final_completion()
    assert text == final.choices[0].message.content == "Hello wörld"


async def test_async_completions(sdk, frontend):
    answer = await sdk.completions.create(model=MODEL, prompt=[1, 2], extra_body={"top_k": 3, "ignore_eos": True})
    assert answer.choices[0].text == "Hello wörld"
    assert (frontend.streams[0].sampling.top_k, frontend.streams[0].prompt.token_ids) == (3, [1, 2])
    stream = await sdk.completions.create(model=MODEL, prompt="x", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello wörld"


async def test_models(sdk):
    assert [model.id async for model in sdk.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError):
        await sdk.models.retrieve("other")


async def test_errors(sdk, frontend):
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await sdk.completions.create(model="other", prompt="x")
    with pytest.raises(openai.NotFoundError):
        await sdk.embeddings.create(model=MODEL, input="x")
    frontend.script = lambda stream: stream.push(InvalidRequest("the template says no", param="messages"))
    with pytest.raises(openai.BadRequestError, match="the template says no"):
        await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    frontend.refusal = Overloaded("full", retry_after_s=4)
    with pytest.raises(openai.RateLimitError) as limit:
        await sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert limit.value.response.headers["retry-after"] == "4"


async def test_an_error_event_raises(sdk, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1]), delta(end=finish("error", message="worker died")))
    stream = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="worker died"):
        [chunk async for chunk in stream]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_does_not_repeat_what_the_engine_failed_at(serve, frontend, stream):
    """By default it repeats what got a 500 twice: a request that kills workers would use up their restarts."""
    frontend.script = lambda stream: stream.push(delta(end=finish("error", message="worker died")))
    async with openai.AsyncOpenAI(base_url=await serve() + "/v1", api_key="none") as client:
        with pytest.raises(openai.InternalServerError, match="worker died"):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
    assert len(frontend.streams) == 1


async def test_closing_a_stream_early_aborts(sdk, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1]))
    async with await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
        assert (await anext(stream)).choices[0].delta.role == "assistant"
    await frontend.streams[0].closed.wait()


async def test_a_timeout_of_the_client_aborts(sdk, frontend):
    frontend.script = lambda stream: None
    with pytest.raises(openai.APITimeoutError):
        await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, timeout=0.2)
    await frontend.streams[0].closed.wait()


async def test_the_sync_client(serve):
    url = await serve()

    def use():
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            pieces = list(client.completions.create(model=MODEL, prompt="x", stream=True))
            chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
            texts = [
                "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
                client.chat.completions.create(model=MODEL, messages=MESSAGES).choices[0].message.content,
                client.completions.create(model=MODEL, prompt="x").choices[0].text,
                "".join(piece.choices[0].text for piece in pieces),
            ]
            raw = client.chat.completions.with_raw_response.create(
                model=MODEL, messages=MESSAGES, extra_headers={"X-Request-Id": "r1"}
            )
            return texts, [model.id for model in client.models.list()], raw.headers["x-request-id"]

    texts, models, request_id = await asyncio.to_thread(use)
    assert texts == ["Hello wörld"] * 4
    assert (models, request_id) == ([MODEL], "r1")


@pytest.mark.slow
async def test_two_hundred_streams_of_the_sdk_at_once(sdk, frontend):
    frontend.script = lambda stream: None

    async def one():
        stream = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    tasks = [asyncio.create_task(one()) for _ in range(200)]
    for stream in [await frontend.arrivals.get() for _ in range(200)]:
        stream.push(delta("Hi", [1], end=finish()))
    assert await asyncio.gather(*tasks) == ["Hi"] * 200
