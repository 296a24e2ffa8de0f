"""Streams measured from outside, in an open or a closed loop.

Open: requests leave at times that were drawn beforehand, whatever becomes of the earlier ones. Closed: so many at once.
The generator shares its machine with the server, so it does little a request: bodies are made before the run, and a
connection is a bare protocol that looks for the first event, and for the end.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import socket
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import cast
from urllib.parse import urlsplit

import msgspec

_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_FIRST_EVENT = b"data: "
_END_OF_STREAM = b"data: [DONE]\n\n\r\n0\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_RETRY_AFTER = re.compile(rb"(?i)\r\nretry-after: *(\d+)")


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """One request; seconds since it was due."""

    status: int
    first_s: float
    """To the first event of a stream, or to the end of a refusal."""
    end_s: float
    retry_after_s: int | None = None
    late_s: float = 0.0
    """How late the generator sent it."""


class Connection(asyncio.Protocol):
    """A kept-alive connection that carries one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Outcome] | None = None
        self._due_s = self._late_s = self._first_s = 0.0
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes, due_s: float) -> Awaitable[Outcome]:
        """`due_s`: loop time from which the answer's times count."""
        assert self.transport is not None and self._answer is None
        self._answer = self._loop.create_future()
        self._due_s, self._late_s, self._first_s = due_s, self._loop.time() - due_s, 0.0
        self._received.clear()
        self.transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            return
        now_s = self._loop.time() - self._due_s
        received = self._received
        received += data
        if received.startswith(b"HTTP/1.1 200"):
            if not self._first_s and _FIRST_EVENT in received:
                self._first_s = now_s
            if received.endswith(_END_OF_STREAM):
                self._end(Outcome(200, self._first_s, now_s, late_s=self._late_s))
            elif self._first_s:
                del received[13 : -len(_END_OF_STREAM)]  # only the end is looked for now
        elif (head_end := received.find(b"\r\n\r\n")) >= 0:
            length = _CONTENT_LENGTH.search(received, 0, head_end)
            if length is not None and len(received) == head_end + 4 + int(length[1]):
                retry = _RETRY_AFTER.search(received, 0, head_end)
                retry_after_s = None if retry is None else int(retry[1])
                self._end(Outcome(int(received[9:12]), now_s, now_s, retry_after_s, self._late_s))

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self._answer is not None:
            self._answer.set_exception(ConnectionError("the server closed the connection before its answer's end"))
            self._answer = None

    def _end(self, outcome: Outcome) -> None:
        assert self._answer is not None
        self._answer.set_result(outcome)
        self._answer = None


class LoadGenerator:
    """Sends prepared requests to one server; `async with` closes its connections."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._idle: deque[Connection] = deque()
        self._all: list[Connection] = []

    async def __aenter__(self) -> LoadGenerator:
        gc.collect()
        gc.freeze()
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._all:
            if connection.transport is not None:
                connection.transport.abort()
        gc.unfreeze()

    async def closed_loop(self, requests: Sequence[bytes], concurrency: int) -> list[Outcome]:
        """All requests, `concurrency` at a time."""
        left = deque(requests)
        outcomes: list[Outcome] = []

        async def work() -> None:
            while left:
                outcomes.append(await self._send(left.popleft(), asyncio.get_running_loop().time()))

        await asyncio.gather(*(work() for _ in range(concurrency)))
        return outcomes

    async def open_loop(self, requests: Sequence[bytes], arrivals_s: Sequence[float]) -> list[Outcome]:
        """Request i leaves `arrivals_s[i]` seconds from now (ascending); returns when all are answered."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        sent: list[asyncio.Task[Outcome]] = []
        for request, arrival_s in zip(requests, arrivals_s, strict=True):
            due_s = begun_s + arrival_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            sent.append(loop.create_task(self._send(request, due_s)))
        return list(await asyncio.gather(*sent))

    async def _send(self, request: bytes, due_s: float) -> Outcome:
        connection = await self._take()
        outcome = await connection.send(request, due_s)
        self._idle.append(connection)
        return outcome

    async def _take(self) -> Connection:
        """The connection that was used last, for few stay idle so long that the server closes them; else a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port, family=socket.AF_INET)
        self._all.append(connection)
        return connection


def poisson_arrivals(rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Times in seconds, ascending, below `duration_s`."""
    draw = random.Random(seed)
    times: list[float] = []
    now_s = draw.expovariate(rate_per_s)
    while now_s < duration_s:
        times.append(now_s)
        now_s += draw.expovariate(rate_per_s)
    return times


def completion_requests(
    number: int, *, input_len: int, output_len: int, vocab_size: int, is_mixed: bool = False, seed: int = 0
) -> list[bytes]:
    """HTTP requests, whole; prompts of random ids, so that nothing is a prefix hit; outputs of a forced length.

    `is_mixed`: from 0.5 to 1.5 times `output_len`, evenly.
    """
    draw = random.Random(seed)
    requests = []
    for _ in range(number):
        prompt = [draw.randrange(1, vocab_size) for _ in range(input_len)]
        length = draw.randint(output_len // 2, output_len * 3 // 2) if is_mixed else output_len
        requests.append(completion_request(prompt, length))
    return requests


def completion_request(prompt: Sequence[int], output_len: int) -> bytes:
    """A whole HTTP request for a greedy stream of so many tokens behind the ids."""
    fields = {"prompt": prompt, "max_tokens": output_len, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps(fields, separators=(",", ":")).encode()
    return _HEAD % len(body) + body
