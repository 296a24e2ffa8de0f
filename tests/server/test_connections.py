"""What never reaches the app: heads that are no HTTP or never end, and one connection too many."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from callboard.server import connections


@pytest.fixture
def connect(serve):
    """`reader, writer = await connect(**settings)`: a plain connection to a server."""
    writers = []
    urls = []

    async def connect(**settings):
        if not urls:
            urls.append(await serve(**settings))
        host, port = urls[0].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.close()


BAD_HEADS = [
    b"nonsense\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: what\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 10_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


@pytest.mark.parametrize("head", BAD_HEADS, ids=lambda head: ascii(head[:30]))
async def test_a_head_that_is_no_http_gets_the_error_body(connect, head):
    reader, writer = await connect()
    writer.write(head)
    answer = await reader.read()  # to the end: the server closes the connection
    status_line, _, rest = answer.partition(b"\r\n")
    assert status_line.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    headers, _, body = rest.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in headers
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")
    assert len(body) < 3000


async def test_bad_heads_are_not_logged(connect, caplog):
    reader, writer = await connect()
    writer.write(b"nonsense\r\n\r\n")
    await reader.read()
    assert caplog.records == []


async def test_a_body_with_broken_chunks_gets_the_error_body(connect):
    reader, writer = await connect()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head + b"zz\r\n{}\r\n0\r\n\r\n")
    answer = await reader.read()
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("start", [b"", b"GET /health HTTP/1.1\r\nHo"])
async def test_a_head_that_does_not_end_is_given_up(connect, start):
    reader, writer = await connect(client_stall_s=0.05)
    writer.write(start)
    assert await reader.read() == b""


async def test_a_head_that_trickles_is_given_up(connect):
    reader, writer = await connect(client_stall_s=0.1)
    writer.write(b"GET /health HTTP/1.1\r\n")
    end = asyncio.create_task(reader.read())
    while not end.done():
        writer.write(b"a")
        await asyncio.sleep(0.002)
    with contextlib.suppress(ConnectionResetError):  # by a byte that came after the end
        assert await end == b""


async def test_the_second_head_of_a_connection_is_bounded_too(connect):
    reader, writer = await connect(client_stall_s=0.1)
    for _ in range(2):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"}")
    writer.write(b"GET /hea")
    assert await reader.read() == b""


async def test_an_idle_connection_stays_open(connect):
    """`client_stall_s` bounds a head that has begun, not the time between two requests."""
    reader, writer = await connect(client_stall_s=0.05)
    for _ in range(2):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"}")
        await asyncio.sleep(0.2)  # the idle time is what is tested


async def test_a_connection_too_many_is_told(connect, monkeypatch):
    monkeypatch.setattr(connections, "max_connections", lambda: 2)
    first, second = await connect(), await connect()
    for _, writer in (first, second):
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    for reader, _ in (first, second):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    reader, writer = await connect()
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
    first[1].close()
    await first[1].wait_closed()
    while True:  # until the server has seen it
        reader, writer = await connect()
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        if (await reader.readline()).startswith(b"HTTP/1.1 200 "):
            break


def test_the_bound_leaves_descriptors_to_the_rest(monkeypatch):
    for soft, expected in [(1024, 768), (100_000, 99_744), (300, 150), (-1, 1 << 20)]:
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert connections.max_connections() == expected
