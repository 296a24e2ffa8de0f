"""Clients that stop reading: dropped after `client_stall_s`, counted, and bounded in memory until then."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_frontend import delta, finish
from prometheus_client.parser import text_string_to_metric_families

from callboard.mailbox.messages.requests import Tokenized
from callboard.server.event_writer import ClientStalled, wait_taken

COMPLETION = {"prompt": "hi"}
PIECE_BYTES = 50_000
KERNEL_BYTES = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2]) + 2 * 4096
"""The largest send buffer, and the client's window."""


@pytest.fixture
async def send():
    """`client = await send(url, body)`: a request on a connection with a tiny window, of which nothing is read."""
    clients = []

    async def send(url, body, path="/v1/completions"):
        host, port = url.removeprefix("http://").split(":")
        client = socket.socket()
        clients.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
        payload = json.dumps(body).encode()
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(payload))
        await asyncio.get_running_loop().sock_sendall(client, head + payload)
        return client

    yield send
    for client in clients:
        client.close()


async def metric(http, url, name, **labels):
    async with http.get(url + "/metrics") as response:
        text = await response.text()
    return next(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )


async def check_counts(http, url, stalled, aborts):
    """The counter comes a moment after the request has left the engine."""
    while await metric(http, url, "callboard:stalled_clients_total") != stalled:
        await asyncio.sleep(0.01)
    assert await metric(http, url, "callboard:request_success_total", finished_reason="abort") == aborts


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_an_answer_of_a_tokenizer_that_nobody_takes(serve, http, frontend, send, monkeypatch, path):
    async def tokenize(prompt, options, *, returns_strings):
        return Tokenized("fake", 1, [1] * KERNEL_BYTES)

    async def detokenize(token_ids):
        return "x" * 2 * KERNEL_BYTES

    monkeypatch.setattr(frontend, "tokenize", tokenize)
    monkeypatch.setattr(frontend, "detokenize", detokenize)
    url = await serve(client_stall_s=0.05)
    await send(url, {"prompt": "a"} if path == "/tokenize" else {"tokens": [1]}, path)
    await check_counts(http, url, stalled=1, aborts=0)


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_a_stream_that_nobody_reads(serve, http, frontend, send, num_choices):
    def flood(stream):
        stream.flood = delta("x" * PIECE_BYTES, [1])

    frontend.script = flood
    url = await serve(client_stall_s=0.05)
    await send(url, {**COMPLETION, "stream": True, "n": num_choices})
    stream = await frontend.arrivals.get()
    await stream.closed.wait()
    await check_counts(http, url, stalled=1, aborts=1)
    write_buffer_bytes = 64 * 1024  # asyncio's high-water mark
    assert (stream.num_taken - 2) * PIECE_BYTES <= KERNEL_BYTES + write_buffer_bytes


async def test_a_whole_answer_that_nobody_reads(serve, http, frontend, send):
    frontend.script = lambda stream: stream.push(delta("x" * 20_000_000, [1], end=finish()))
    url = await serve(client_stall_s=0.05)
    await send(url, COMPLETION)
    stream = await frontend.arrivals.get()
    await stream.closed.wait()
    await check_counts(http, url, stalled=1, aborts=0)  # the engine had ended it
    assert await metric(http, url, "callboard:request_success_total", finished_reason="stop") == 1


async def test_the_end_of_a_stream_that_nobody_reads(serve, http, frontend, send):
    frontend.script = lambda stream: stream.push(delta("x" * 20_000_000, [1], end=finish()))
    url = await serve(client_stall_s=0.05)
    await send(url, {**COMPLETION, "stream": True})
    await (await frontend.arrivals.get()).closed.wait()
    await check_counts(http, url, stalled=1, aborts=0)


async def test_comments_do_not_pile_up(serve, http, frontend, send):
    """A waiting request gets comments into an empty buffer only: it is not the client's fault that it waits."""
    frontend.script = lambda stream: None
    url = await serve(client_stall_s=0.05, sse_comment_interval_s=0.001)
    client = await send(url, {**COMPLETION, "stream": True})
    stream = await frontend.arrivals.get()
    while await asyncio.get_running_loop().sock_recv(client, 1) != b":":  # the first comment, behind the head
        pass
    stream.flood = delta("x" * PIECE_BYTES, [1])
    stream.push(delta("x", [1]))
    await stream.closed.wait()
    await check_counts(http, url, stalled=1, aborts=1)


class FakeTransport:
    """A transport whose client takes so many bytes, one each time that somebody looks."""

    def __init__(self, num_bytes, num_taken):
        self.num_bytes, self.num_taken, self.is_aborted = num_bytes, num_taken, False
        self.taken = asyncio.Event()

    def get_write_buffer_size(self):
        if self.num_taken:
            self.num_taken -= 1
            self.num_bytes -= 1
        if not self.num_bytes:
            self.taken.set()
        return self.num_bytes

    def abort(self):
        self.is_aborted = True


async def test_a_slow_client_that_takes_something_is_waited_for():
    transport = FakeTransport(20, 20)
    await wait_taken(SimpleNamespace(transport=transport), transport.taken.wait(), 0.001)
    assert not transport.is_aborted


async def test_a_client_that_takes_nothing_any_more_is_not():
    transport = FakeTransport(20, 10)
    with pytest.raises(ClientStalled):
        await wait_taken(SimpleNamespace(transport=transport), transport.taken.wait(), 0.001)
    assert transport.is_aborted
    assert transport.num_bytes == 10
