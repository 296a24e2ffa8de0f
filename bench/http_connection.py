"""One HTTP/1.1 connection of a load generator: as little work a request as can be, for it shares the machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

_HEAD_END = b"\r\n\r\n"
_LIMIT = 1 << 24


class HttpConnection:
    """Opened at the first request, and again after `close`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, path: str, body: bytes) -> None:
        """POST `body` as JSON."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=_LIMIT)
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self._streams[1].write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def receive(self) -> tuple[int, bytes]:
        """(status, whole body) of the answer to the last `send`."""
        pieces = [piece async for piece in self.receive_parts()]
        return pieces[0][0], b"".join(part for _, part in pieces)

    async def receive_parts(self) -> AsyncIterator[tuple[int, bytes]]:
        """(status, piece of the body) for each chunk, at least one; of an answer that has a length in one piece."""
        assert self._streams is not None
        reader = self._streams[0]
        head = (await reader.readuntil(_HEAD_END)).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if "transfer-encoding: chunked" in head:
            while size := int(await reader.readline(), 16):
                yield status, (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
            yield status, b""
        else:
            yield status, await reader.readexactly(int(head.partition("content-length:")[2].split("\r\n", 1)[0]))
        if "connection: close" in head:
            self.close()

    def close(self) -> None:
        """Also in the middle of an answer, which the server takes for an abort."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
