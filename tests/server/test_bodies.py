"""Request bodies: parsed off the loop when large, bounded in bytes, values and time."""

from __future__ import annotations

import asyncio
import json
import re
import threading

import pytest
from fake_frontend import MODEL
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import InvalidRequest, Overloaded
from callboard.server import app, generation
from callboard.server.body_parser import INLINE_BYTES, MAX_WAITING, BodyParser
from callboard.server.body_reader import BodyBudget
from callboard.server.json_values import MAX_STRINGS, check_num_values, split_strings

LARGE = b" " * (INLINE_BYTES + 1)


@pytest.fixture
def parser():
    parser = BodyParser()
    yield parser
    parser.close()


async def test_the_loop_turns_while_a_large_body_is_parsed(parser):
    """The parse ends only when the loop has turned ten times, so it cannot be on the loop."""
    turned = threading.Event()

    def parse(body):
        turned.wait()
        return len(body)

    parsing = asyncio.create_task(parser.parse(LARGE, parse))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not parsing.done()
    turned.set()
    assert await parsing == len(LARGE)


async def test_health_is_answered_while_a_large_body_is_parsed(serve, http, monkeypatch):
    is_answered, is_parsing = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    parse_chat_request = generation.parse_chat_request

    def parse(*args, **kwargs):
        loop.call_soon_threadsafe(is_parsing.set)
        is_answered.wait()
        return parse_chat_request(*args, **kwargs)

    monkeypatch.setattr(generation, "parse_chat_request", parse)
    url = await serve()
    body = {"messages": [{"role": "user", "content": "x" * (2 * INLINE_BYTES)}]}
    answer = asyncio.create_task(http.post(url + "/v1/chat/completions", json=body))
    await is_parsing.wait()
    async with http.get(url + "/health") as response:
        assert response.status == 200
    is_answered.set()
    async with await answer as response:
        assert response.status == 200


async def test_small_bodies_are_parsed_in_place(parser):
    thread = await parser.parse(LARGE[:INLINE_BYTES], lambda body: threading.current_thread())
    assert thread is threading.main_thread()
    assert await parser.parse(LARGE, lambda body: threading.current_thread()) is not thread


async def test_errors_of_a_large_body(serve, http):
    url = await serve()
    for body, param in [
        ({"messages": "x" * INLINE_BYTES}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * INLINE_BYTES}], "temperature": -1}, "temperature"),
    ]:
        async with http.post(url + "/v1/chat/completions", json=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == param


async def test_so_many_large_bodies_wait_and_no_more(parser):
    go_on = threading.Event()
    waiting = [asyncio.create_task(parser.parse(LARGE, lambda body: go_on.wait())) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await parser.parse(LARGE, len)
    go_on.set()
    await asyncio.gather(*waiting)
    assert parser.num_waiting == 0
    assert await parser.parse(LARGE, len) == len(LARGE)


async def test_a_cancelled_parse_is_over_when_the_thread_is(parser):
    begun, go_on = threading.Event(), threading.Event()

    def parse(body):
        begun.set()
        go_on.wait()
        raise ValueError("nobody hears of it")

    running = asyncio.create_task(parser.parse(LARGE, parse))
    queued = asyncio.create_task(parser.parse(LARGE, parse))
    await asyncio.to_thread(begun.wait)
    for task in (running, queued):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    assert not running.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert parser.num_waiting == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('a"\\[{,:é\n')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('a"\\,'), max_size=3), inner),
    max_leaves=40,
)


def strings_of(value):
    if isinstance(value, dict):
        return len(value) + sum(map(strings_of, value.values()))
    return sum(map(strings_of, value)) if isinstance(value, list) else isinstance(value, str)


@settings(max_examples=60, deadline=None, database=None)
@given(json_values, st.sampled_from([None, 1]), st.booleans())
def test_strings_are_told_from_what_is_around_them(value, indent, ensure_ascii):
    parts = split_strings(json.dumps(value, indent=indent, ensure_ascii=ensure_ascii).encode())
    assert len(parts) // 2 == strings_of(value)
    outside = b'""'.join(parts[::2]).decode()
    assert re.sub(r"\s", "", outside) == re.sub(r"\s", "", without_strings(value))


def without_strings(value):
    """The JSON text of `value` with every string empty."""
    match value:
        case dict():
            return "{" + ",".join('"":' + without_strings(inner) for inner in value.values()) + "}"
        case list():
            return "[" + ",".join(map(without_strings, value)) + "]"
        case str():
            return '""'
        case _:
            return json.dumps(value)


async def test_bodies_of_too_many_values(serve, http, frontend):
    url = await serve()
    many = MAX_STRINGS + 100
    for path, body in [
        ("completions", {"prompt": "a", **{f"field{index}": 1 for index in range(many)}}),
        ("completions", {"prompt": [1] * many}),
        ("completions", {"prompt": "a", "tools": [{}] * many}),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}] * (many // 4)}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * many}]}),
    ]:
        async with http.post(f"{url}/v1/{path}", json=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "too_many_values"
    assert frontend.streams == []


def test_text_is_not_counted():
    check_num_values(json.dumps({"prompt": ',[{"' * MAX_STRINGS}).encode(), 64)
    with pytest.raises(InvalidRequest):
        check_num_values(json.dumps({"prompt": [""] * (MAX_STRINGS + 100)}).encode(), 64)


def test_the_budget_of_bytes():
    budget = BodyBudget(100)
    with budget.share() as first, budget.share() as second:
        first.take_nowait(60)
        second.take_nowait(40)
        with pytest.raises(Overloaded) as raised:
            first.take_nowait(1)
        assert raised.value.retry_after_s == 1
        assert budget.num_bytes == 100
    assert budget.num_bytes == 0


async def test_bodies_beyond_the_budget_are_a_429(serve, http, frontend, monkeypatch):
    """Bytes count while a request is served, streaming or not, and while a body is on its way."""
    monkeypatch.setattr(app, "HELD_BYTES", 0)
    monkeypatch.setattr(app, "HELD_BODIES", 3)
    frontend.script = lambda stream: None
    url = await serve(max_request_bytes=1000)
    body = {"model": MODEL, "prompt": "x" * 900}

    async def status():
        async with http.post(url + "/v1/completions", json=body) as response:
            return response.status, response.headers.get("Retry-After")

    live = [asyncio.create_task(http.post(url + "/v1/completions", json={**body, "stream": True})) for _ in range(3)]
    streams = [await frontend.arrivals.get() for _ in live]
    assert await status() == (429, "1")
    live[0].cancel()
    for stream in frontend.streams:
        if stream in streams:
            stream.push(StopAsyncIteration())
    for task in live[1:]:
        async with await task as response:
            assert response.status == 500
    for stream in streams:
        await stream.closed.wait()
    frontend.script = lambda stream: stream.push(StopAsyncIteration())
    assert (await status())[0] == 500


async def test_a_body_that_comes_too_slowly(serve):
    host, port = (await serve(client_stall_s=0.05)).removeprefix("http://").split(":")
    for start in (b"", b'{"prompt": '):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + start)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"request_timeout" in await reader.readuntil(b"}}")
        writer.close()


async def test_a_body_that_trickles(serve):
    """A byte every millisecond never stalls, but the whole would take too long."""
    host, port = (await serve(client_stall_s=0.1)).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")
    answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    while not answer.done():
        writer.write(b" ")
        await asyncio.sleep(0.002)
    assert (await answer).startswith(b"HTTP/1.1 408 ")
    writer.close()
