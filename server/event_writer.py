"""Writes the bytes of one answer to its client.

Sends comments while there is nothing to say, and limits how long a client may take nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import StreamWriter

from ..actors.task_register import start_task
from ..topology.schema import ServerSection
from .chunk_sequence import COMMENT

EVENT_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
MAX_HEAD_BYTES = 16 << 10
"""Status line and headers of an answer are less."""


class ClientGone(Exception):
    """The client closed the connection."""


class ClientStalled(ClientGone):
    """The client took nothing for so long that the server closed the connection."""


class EventWriter:
    """An event stream's connection; the response starts with the first bytes or the first comment.

    Only `_begin` and `_write` touch the response. Writing never waits inside aiohttp, so a comment, which a timer
    sends, cannot fall between the bytes of an event.
    """

    def __init__(self, request: web.Request, headers: Mapping[str, str], settings: ServerSection) -> None:
        self.response = web.StreamResponse(headers={**EVENT_STREAM_HEADERS, **headers})
        self._request = request
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._writer: StreamWriter | None = None
        self._begin_lock = asyncio.Lock()
        self._last_write_s = self._loop.time()
        self._comment: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._timer = self._loop.call_later(settings.sse_comment_interval_s, self._on_timer)

    @property
    def is_started(self) -> bool:
        """The status line has been sent: an error can only be an event now."""
        return self.response.prepared

    async def write(self, events: bytes) -> None:
        """Raises ClientGone. Returns when the client has taken enough for more to follow."""
        try:
            await self._write(events)
            transport = self._request.transport
            if transport is not None and transport.get_write_buffer_size() > transport.get_write_buffer_limits()[1]:
                assert self._writer is not None
                await wait_taken(self._request, self._writer.drain(), self._settings.client_stall_s)
        except ConnectionError as error:
            raise ClientGone from error

    async def end(self) -> None:
        """After the last event. Raises ClientGone."""
        self.stop_comments()
        try:
            await end_answer(self._request, self.response, self._settings.client_stall_s)
        except ConnectionError as error:
            raise ClientGone from error

    def stop_comments(self) -> None:
        """May be called twice; must be called once, for the timer holds the writer."""
        self._is_stopped = True
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def _begin(self) -> StreamWriter:
        async with self._begin_lock:
            if self._writer is None:
                self._writer = _stream_writer(await self.response.prepare(self._request))
        return self._writer

    async def _write(self, events: bytes) -> None:
        writer = self._writer or await self._begin()
        self._last_write_s = self._loop.time()
        await writer.write(events, drain=False)

    def _on_timer(self) -> None:
        interval_s = self._settings.sse_comment_interval_s
        idle_s = self._loop.time() - self._last_write_s
        if idle_s >= interval_s:
            idle_s = 0.0
            transport = self._request.transport
            if transport is None or transport.is_closing():
                return
            if transport.get_write_buffer_size() == 0:
                self._comment = start_task(
                    self._write_comment(),
                    owner=f"{self._request.method} {self._request.path}",
                    event="SSE comment",
                    is_owned=lambda: not self._is_stopped,
                )
        self._timer = self._loop.call_later(interval_s - idle_s, self._on_timer)

    async def _write_comment(self) -> None:
        try:
            await self._write(COMMENT)
        except ConnectionError:
            return  # the handler is cancelled by the same event


def _stream_writer(writer: AbstractStreamWriter | None) -> StreamWriter:
    assert isinstance(writer, StreamWriter)
    return writer


async def end_answer(request: web.Request, response: web.StreamResponse, stall_s: float) -> None:
    """Send what is left of an answer: of a whole one all, of a stream its end.

    If it finds room it goes without a turn of the event loop: a client that has all of it and closes its connection
    in such a turn would be taken for one that left before the end. Raises as `wait_taken`.
    """
    transport, num_bytes = request.transport, response.content_length or 0
    if transport is not None:
        low, high = transport.get_write_buffer_limits()
        size = transport.get_write_buffer_size()
        if size <= low and size + num_bytes + MAX_HEAD_BYTES <= high:  # writing is not paused, and will not be
            await response.write_eof()
            return
    await wait_taken(request, response.write_eof(), stall_s)


async def wait_taken(request: web.Request, writing: Coroutine[None, None, None], stall_s: float) -> None:
    """Wait for `writing`, which waits for the client; abort a client that takes no byte for `stall_s`.

    Raises ClientGone, ClientStalled, or what `writing` raises.
    """
    transport = request.transport
    if transport is None:
        writing.close()
        raise ClientGone
    task = asyncio.ensure_future(writing)
    try:
        left = transport.get_write_buffer_size()
        while not (await asyncio.wait({task}, timeout=stall_s))[0]:
            before, left = left, transport.get_write_buffer_size()
            if left >= before:
                transport.abort()
                raise ClientStalled
        await task
    finally:
        task.cancel()
