"""Event streams over a real connection."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from fake_frontend import MODEL, delta, events_of, finish, serve_fake

from callboard.errors import EngineFailure, InvalidRequest, Overloaded, Unavailable

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
COMPLETION = {"model": MODEL, "prompt": "hi", "stream": True}
ENDPOINTS = [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]


async def stream_of(http, url, path, body):
    async with http.post(url + path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        return events_of(await response.read())


def text_of(event):
    choice = event["choices"][0]
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_chunks_of_a_stream(serve, http, path, body):
    events = await stream_of(http, await serve(), path, body)
    assert events.pop() == "[DONE]"
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1
    assert events[0]["object"] == ("chat.completion.chunk" if "chat" in path else "text_completion")
    assert events[0]["id"].startswith("chatcmpl-" if "chat" in path else "cmpl-")
    assert events[0]["model"] == MODEL
    assert "".join(map(text_of, events)) == "Hello wörld"
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert all("usage" not in event for event in events)
    assert all("token_ids" not in event["choices"][0] for event in events)
    if "chat" in path:
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in event["choices"][0]["delta"] for event in events[1:])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_usage_comes_once_and_only_if_asked_for(serve, http, path, body):
    url = await serve()
    events = await stream_of(http, url, path, {**body, "stream_options": {"include_usage": False}})
    assert all("usage" not in event for event in events[:-1])
    events = await stream_of(http, url, path, {**body, "stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert all(event["choices"] and event["usage"] is None for event in events[:-2])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_token_ids_in_a_stream(serve, http, frontend, path, body):
    events = await stream_of(http, await serve(), path, {**body, "return_token_ids": True})
    assert frontend.streams[0].returns_prompt
    choices = [event["choices"][0] for event in events[:-1]]
    assert [token_id for choice in choices for token_id in choice.get("token_ids", [])] == [1, 2, 3]
    holders = events[:-1] if "chat" in path else choices
    assert holders[0]["prompt_token_ids"] == [7, 8, 9, 10, 11]
    assert all("prompt_token_ids" not in holder for holder in holders[1:])


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("prompt has 70 tokens, the limit is 63", param="prompt"), 400),
        (Overloaded("the queue is full", retry_after_s=7), 429),
        (Unavailable("draining"), 503),
        (EngineFailure("the scheduler died"), 500),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("at", ["submit", "stream"])
async def test_refusals_before_the_first_delta_are_plain_answers(
    serve, http, frontend, path, body, error, status, streams, at
):
    if at == "submit":
        frontend.refusal = error
    else:
        frontend.script = lambda stream: stream.push(error)
    async with http.post(await serve() + path, json={**body, "stream": streams}) as response:
        assert response.status == status
        assert response.headers.get("Retry-After") == {429: "7", 503: "1"}.get(status)
        answer = await response.json()
    assert answer == {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    assert all(stream.closed.is_set() for stream in frontend.streams)


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize(
    "last",
    [
        EngineFailure("the worker died"),
        delta(end=finish("error", message="the worker died")),
        RuntimeError("a bug"),
    ],
)
async def test_an_error_in_a_stream_is_an_event_and_then_the_end(serve, http, frontend, path, body, last):
    frontend.script = lambda stream: stream.push(delta("Hel", [1]), last)
    events = await stream_of(http, await serve(), path, body)
    assert events[-1] == "[DONE]"
    assert set(events[-2]) == {"error"}
    assert set(events[-2]["error"]) == {"message", "type", "param", "code"}
    if not isinstance(last, RuntimeError):
        assert events[-2]["error"]["message"] == "the worker died"
    else:
        assert "bug" not in events[-2]["error"]["message"]
    assert "".join(map(text_of, events[:-2])) == "Hel"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-2])


@pytest.mark.parametrize("streams", [True, False])
async def test_a_finish_with_an_error_before_any_text_is_a_500(serve, http, frontend, streams):
    frontend.script = lambda stream: stream.push(delta(end=finish("error", message="no room for it")))
    async with http.post(await serve() + "/v1/completions", json={**COMPLETION, "stream": streams}) as response:
        assert response.status == 500
        assert (await response.json())["error"]["message"] == "no room for it"


@pytest.mark.parametrize("streams", [True, False])
async def test_a_stream_that_ends_without_a_finish_is_a_failure(serve, http, frontend, streams):
    frontend.script = lambda stream: stream.push(StopAsyncIteration())
    async with http.post(await serve() + "/v1/completions", json={**COMPLETION, "stream": streams}) as response:
        assert response.status == 500


async def test_an_abort_is_a_finish_reason(serve, http, frontend):
    frontend.script = lambda stream: stream.push(delta("Hel", [1]), delta(end=finish("abort", 1)))
    events = await stream_of(http, await serve(), "/v1/chat/completions", CHAT)
    assert events[-2]["choices"][0] == {
        "delta": {},
        "finish_reason": "abort",
        "index": 0,
        "logprobs": None,
        "stop_reason": None,
    }


async def test_a_stop_string_is_named(serve, http, frontend):
    frontend.script = lambda stream: stream.push(delta("a", [1]), delta(end=finish("stop", 1, stop_reason="END")))
    events = await stream_of(http, await serve(), "/v1/completions", COMPLETION)
    assert events[-2]["choices"][0]["stop_reason"] == "END"


async def test_a_waiting_stream_gets_comments_and_then_its_text(serve, http, frontend):
    frontend.script = lambda stream: None
    url = await serve(sse_comment_interval_s=0.01)
    async with http.post(url + "/v1/chat/completions", json=CHAT) as response:
        assert response.status == 200
        stream = await frontend.arrivals.get()
        for _ in range(3):
            assert (await response.content.readline()).startswith(b":")
            assert await response.content.readline() == b"\n"
        stream.push(delta("Hi", [1], end=finish()))
        events = events_of(await response.read())
    assert [text_of(event) for event in events[:-1]] == ["", "Hi"]


async def test_a_refusal_after_a_comment_is_an_event(serve, http, frontend):
    frontend.script = lambda stream: None
    url = await serve(sse_comment_interval_s=0.01)
    async with http.post(url + "/v1/chat/completions", json=CHAT) as response:
        assert (await response.content.readline()).startswith(b":")
        assert await response.content.readline() == b"\n"
        (await frontend.arrivals.get()).push(Overloaded("full", retry_after_s=3))
        events = events_of(await response.read())
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["type"] == "rate_limit_error"
    assert len(events) == 2


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("first_text", ["", "Hel"])
async def test_a_client_that_leaves_closes_its_request(serve, frontend, path, body, streams, first_text):
    frontend.script = lambda stream: stream.push(delta(first_text, [1])) if first_text else None
    host, port = (await serve()).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps({**body, "stream": streams}).encode()
    writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(payload)) + payload)
    stream = await frontend.arrivals.get()
    if streams and first_text:
        assert b"200" in await reader.readline()
    assert not stream.closed.is_set()
    writer.close()
    await stream.closed.wait()


@pytest.mark.slow
async def test_closing_the_server_ends_its_streams(http, frontend):
    frontend.script = lambda stream: stream.push(delta("Hel", [1]))
    server, url = await serve_fake(frontend)
    async with http.post(url + "/v1/completions", json=COMPLETION) as response:
        await server.close()
        events = events_of(await response.read())
    assert text_of(events[0]) == "Hel"
    assert events[1]["error"]["type"] == "service_unavailable_error"
    assert events[2:] == ["[DONE]"]
    assert frontend.streams[0].closed.is_set()
    await server.close()


@pytest.mark.slow
async def test_closing_the_server_answers_a_waiting_request(http, frontend):
    frontend.script = lambda stream: None
    server, url = await serve_fake(frontend)
    answer = asyncio.create_task(http.post(url + "/v1/completions", json={"prompt": "a"}))
    stream = await frontend.arrivals.get()
    await server.close()
    assert (await answer).status == 503
    assert stream.closed.is_set()


async def test_closing_the_server_lets_answers_end(http, frontend):
    frontend.script = lambda stream: stream.push(delta("Hel", [1]))
    server, url = await serve_fake(frontend)
    async with http.post(url + "/v1/completions", json=COMPLETION) as response:
        closing = asyncio.create_task(server.close())
        frontend.streams[0].push(delta("lo", [2], end=finish()))
        events = events_of(await response.read())
    assert "".join(map(text_of, events[:-1])) == "Hello"
    await closing


async def test_a_long_stream_to_a_client_that_reads_is_whole(serve, http, frontend):
    pieces = [chr(97 + index % 26) * 20_000 for index in range(200)]

    def script(stream):
        stream.push(*(delta(piece, [1]) for piece in pieces), delta(end=finish()))

    frontend.script = script
    events = await stream_of(http, await serve(), "/v1/completions", COMPLETION)
    assert "".join(map(text_of, events[:-1])) == "".join(pieces)


async def test_two_hundred_at_once(serve, http, frontend):
    frontend.script = lambda stream: None
    url = await serve()
    tasks = [asyncio.create_task(stream_of(http, url, "/v1/completions", COMPLETION)) for _ in range(100)]
    async with aiohttp.ClientSession() as other:
        tasks += [asyncio.create_task(stream_of(other, url, "/v1/chat/completions", CHAT)) for _ in range(100)]
        streams = [await frontend.arrivals.get() for _ in range(200)]
        assert len({stream.request_id for stream in streams}) == 200
        for stream in streams:
            stream.push(delta("Hi", [1], end=finish()))
        answers = await asyncio.gather(*tasks)
    assert all(answer[-1] == "[DONE]" for answer in answers)
