"""A server that sends whatever a test tells it to, and notes what it was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

HEAD = "HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n"


def head(status="200 OK", **headers) -> bytes:
    """The head of an answer whose body ends with the connection; `Retry_After` is written Retry-After."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return HEAD.format(status=status, headers=lines).encode()


def answer(body: object, status="200 OK", **headers) -> bytes:
    """A whole answer; `body`: bytes as they are, else JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(status, Content_Length=len(data), **headers) + data


def events(*chunks: object, done=True) -> bytes:
    """Chunks of an event stream, as they stand in its body."""
    data = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return data + (b"data: [DONE]\n\n" if done else b"")


def piece(text="a", finish=None, index=0, **more) -> dict:
    """A chunk of a completion."""
    choice = {"index": index, "text": text, "finish_reason": finish, **more}
    return {"id": "x", "choices": [choice]}


class Request:
    """One request as it came; `gone` is set when its client has closed the connection."""

    def __init__(self, line: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, _ = line.split()
        self.headers = headers
        self.json = json.loads(body) if body else None
        self.gone = asyncio.Event()


Act = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Answers request i with `answers[i]`, later ones with the last: bytes, after which the connection is closed, or a
    coroutine function that gets the request and a writer."""

    def __init__(self) -> None:
        self.answers: list[bytes | Act] = []
        self.requests: list[Request] = []
        self.arrivals: asyncio.Queue[Request] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, path: str | None = None) -> None:
        if path is not None:
            self._server = await asyncio.start_unix_server(self._serve, path)
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (request := await _read(reader)) is not None:
                act = self.answers[min(len(self.requests), len(self.answers) - 1)]
                self.requests.append(request)
                self.arrivals.put_nowait(request)
                if isinstance(act, bytes):
                    writer.write(act)
                    if b"Connection: close" in act:
                        break
                else:
                    await act(request, writer)
                    if await reader.read(1) == b"":
                        request.gone.set()
                    break
        except ConnectionError:
            self.requests[-1].gone.set()
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    return Request(lines[0], headers, await reader.readexactly(int(headers.get("content-length", 0))))
