"""The client against a real server over a frontend without an engine."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import aclosing

import aiohttp
import pytest
from aiohttp import web
from fake_frontend import MODEL, delta, finish

import callboard
from callboard.actors.frontend_api import Health
from callboard.client import AsyncClient, Timeouts
from callboard.errors import (
    EngineFailure,
    InvalidRequest,
    NotSupportedYet,
    Overloaded,
    RequestAtFault,
    RequestError,
    TimeLimitExceeded,
    Unauthorized,
    Unavailable,
    UnknownModel,
)

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def client(serve):
    async with AsyncClient(await serve()) as client:
        yield client


def calls(client):
    return [lambda **params: client.chat(MESSAGES, **params), lambda **params: client.complete("hi", **params)]


def test_it_is_exported_by_the_package():
    assert callboard.AsyncClient is AsyncClient


async def test_deltas(client, frontend):
    for call in calls(client):
        deltas = [delta async for delta in call(max_tokens=9, temperature=0)]
        assert "".join(delta.text for delta in deltas) == "Hello wörld"
        assert [token_id for delta in deltas for token_id in delta.token_ids] == [1, 2, 3]
        assert deltas[0].prompt_token_ids == [7, 8, 9, 10, 11]
        assert all(delta.prompt_token_ids is None for delta in deltas[1:])
        assert [delta.finish_reason for delta in deltas] == [None, "stop"]
        assert deltas[-1].usage.total_tokens == 8
        assert deltas[-1].usage.prompt_tokens_details.cached_tokens == 2
        assert {delta.request_id for delta in deltas} == {frontend.streams[-1].request_id}
        assert (frontend.streams[-1].sampling.max_tokens, frontend.streams[-1].sampling.temperature) == (9, 0)


async def test_several_choices(client, frontend):
    for call in calls(client):
        deltas = [delta async for delta in call(n=3)]
        assert frontend.streams[-1].num_choices == 3
        for choice in range(3):
            own = [delta for delta in deltas if delta.choice == choice]
            assert "".join(delta.text for delta in own) == "Hello wörld"
            assert [delta.finish_reason for delta in own] == [None, "stop"]
        assert [delta.usage is None for delta in deltas] == [True] * 5 + [False]
        assert deltas[-1].usage.completion_tokens == 9
        assert deltas[0].prompt_token_ids == [7, 8, 9, 10, 11]


async def test_a_choice_without_an_end_is_a_failure(client, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1], end=finish()), StopAsyncIteration())
    with pytest.raises(EngineFailure):
        [delta async for delta in client.complete("x", n=2)]


async def test_token_prompts(client, frontend):
    [_ async for _ in client.complete([1, 2, 3], return_token_ids=False)]
    assert frontend.streams[0].prompt.token_ids == [1, 2, 3]
    assert not frontend.streams[0].returns_prompt


async def test_models_and_health(client, frontend):
    assert [model.id for model in await client.models()] == [MODEL]
    assert await client.health() == Health(True, True, "")
    frontend.health_now = Health(False, False, "worker is down")
    assert await client.health() == Health(False, False, "worker is down")


async def test_the_base_url_may_end_in_v1(serve):
    async with AsyncClient(await serve() + "/v1/") as client:
        assert len(await client.models()) == 1


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("bad prompt", param="prompt", code="c"),
        UnknownModel("no such model", param="model"),
        Overloaded("full", retry_after_s=7),
        Unavailable("draining", retry_after_s=2),
        EngineFailure("the scheduler died"),
        RequestAtFault("it kills workers"),
        NotSupportedYet("best_of=2", param="best_of"),
    ],
)
async def test_refusals(client, frontend, error):
    frontend.refusal = error
    for call in calls(client):
        with pytest.raises(RequestError) as raised:
            await anext(call())
        assert type(raised.value) is type(error)
        got = raised.value
        assert (got.message, got.param, got.code, got.status) == (error.message, error.param, error.code, error.status)
        assert got.retry_after_s == error.retry_after_s


async def test_bad_parameters(client):
    with pytest.raises(InvalidRequest) as raised:
        await anext(client.chat(MESSAGES, temperature="hot"))
    assert raised.value.param == "temperature"


@pytest.mark.parametrize("error", [EngineFailure("worker died"), Unavailable("the engine is ending")])
async def test_an_error_in_the_stream(client, frontend, error):
    frontend.script = lambda stream: stream.push(delta("Hel", [1]), error)
    stream = client.chat(MESSAGES)
    assert (await anext(stream)).text == "Hel"
    with pytest.raises(type(error), match=error.message):
        await anext(stream)


async def test_leaving_the_loop_aborts(client, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1]), delta("b", [2]))
    async for _ in client.chat(MESSAGES):
        break
    gc.collect()
    await frontend.streams[0].closed.wait()


async def test_aclose_aborts(client, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1]))
    async with aclosing(client.complete("hi")) as stream:
        assert (await anext(stream)).text == "a"
        assert not frontend.streams[0].closed.is_set()
    await frontend.streams[0].closed.wait()


@pytest.mark.parametrize("script", [lambda stream: None, lambda stream: stream.push(delta("a", [1]))])
async def test_cancellation_aborts(client, frontend, script):
    frontend.script = script

    async def use():
        return [delta async for delta in client.chat(MESSAGES)]

    task = asyncio.create_task(use())
    stream = await frontend.arrivals.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stream.closed.wait()


async def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with AsyncClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(Unavailable):
            await anext(client.chat(MESSAGES))
        with pytest.raises(Unavailable):
            await client.models()
        with pytest.raises(Unavailable):
            await client.health()


@pytest.mark.parametrize(
    "url", ["foo bar", "127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", ""]
)
async def test_a_url_that_is_none(url):
    async with AsyncClient(url) as client:
        with pytest.raises(Unavailable):
            await anext(client.chat(MESSAGES))
        with pytest.raises(Unavailable, match=r"base URL .* is none that can be asked; it is http://HOST:PORT"):
            await client.models()
        with pytest.raises(Unavailable):
            await client.health()


async def test_closing_the_client_ends_a_task_that_reads_a_stream(serve, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1]))
    client = AsyncClient(await serve())
    stream = client.complete("x")
    await anext(stream)
    rest = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(EngineFailure, match="the client was closed"):
        await rest
    await frontend.streams[0].closed.wait()


async def test_closing_the_client_ends_a_task_that_waits_for_an_answer(serve, frontend):
    submitted = asyncio.Event()
    frontend.script = lambda stream: submitted.set()
    client = AsyncClient(await serve())
    first = asyncio.create_task(anext(client.complete("x")))
    await submitted.wait()
    await client.close()
    with pytest.raises(Unavailable):
        await first
    await frontend.streams[0].closed.wait()


async def test_closing_the_client_between_the_head_of_an_answer_and_its_reader(serve, frontend, monkeypatch):
    frontend.script = lambda stream: stream.push(delta("a", [1]))
    client = AsyncClient(await serve())
    start = aiohttp.ClientResponse.start

    async def start_and_close(self, connection):
        response = await start(self, connection)
        await client.close()
        return response

    monkeypatch.setattr(aiohttp.ClientResponse, "start", start_and_close)
    with pytest.raises(EngineFailure, match="the client was closed"):
        await anext(client.complete("x"))
    await frontend.streams[0].closed.wait()


@pytest.fixture
async def raw_server():
    """A server that answers any POST with given bytes of an event stream and then cuts the connection, or just ends."""
    runners = []

    async def start(body: bytes, *, is_cut: bool) -> str:
        async def answer(request: web.Request) -> web.StreamResponse:
            await request.read()
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(body)
            if is_cut:
                request.transport.abort()
            return response

        app = web.Application()
        app.add_routes([web.post("/{path:.*}", answer)])
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


PIECE = b'data: {"id": "x", "choices": [{"text": "a", "finish_reason": null}]}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b'data: {"id": "x", "choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    ("body", "is_cut"),
    [
        (PIECE, True),
        (PIECE, False),
        (PIECE + b"data: [DONE]\n\n", False),
        (PIECE + LAST, True),
        (b"data: {\n\n", False),
    ],
)
async def test_a_stream_that_is_cut_is_a_failure(raw_server, body, is_cut):
    async with AsyncClient(await raw_server(body, is_cut=is_cut)) as client:
        with pytest.raises(EngineFailure):
            [delta async for delta in client.complete("x")]


async def test_a_server_that_says_nothing(serve, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1]))
    async with AsyncClient(await serve(), timeouts=Timeouts(chunk_s=0.1)) as client:
        with pytest.raises(TimeLimitExceeded, match=r"nothing for 0\.1 s") as raised:
            [delta async for delta in client.complete("x")]
    assert raised.value.limit == "chunk_s"
    await frontend.streams[0].closed.wait()


async def test_api_keys(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    url = await serve(api_keys_file=str(keys))
    async with AsyncClient(url, api_key="secret") as client:
        assert [delta.finish_reason async for delta in client.chat(MESSAGES)][-1] == "stop"
    async with AsyncClient(url) as client:
        with pytest.raises(Unauthorized) as raised:
            await anext(client.chat(MESSAGES))
        assert (raised.value.status, raised.value.code) == (401, "invalid_api_key")


async def test_two_hundred_at_once(client, frontend):
    frontend.script = lambda stream: None

    async def one():
        return "".join([delta.text async for delta in client.chat(MESSAGES)])

    tasks = [asyncio.create_task(one()) for _ in range(200)]
    for stream in [await frontend.arrivals.get() for _ in range(200)]:
        stream.push(delta("Hi", [1], end=finish()))
    assert await asyncio.gather(*tasks) == ["Hi"] * 200
