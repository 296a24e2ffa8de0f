"""Reads request bodies within bounds: of one body's size, of all bodies' bytes, and of the time a client may take."""

from __future__ import annotations

import asyncio
from types import TracebackType

from aiohttp import web

from ..errors import InvalidRequest, Overloaded

HELD_BODIES = 16
"""Bodies of the largest size that the server holds at once."""
HELD_BYTES = 256 * 1024 * 1024
"""Bytes of bodies that the server holds at once, at least."""
MIN_BYTES_PER_S = 1000.0
"""A body that comes more slowly is given up, `client_stall_s` later: a byte a minute must not hold a connection."""


class BodyBudget:
    """Counts the bytes of all bodies, each from its first byte until its request has ended."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def share(self) -> BodyShare:
        """One request's part: `with budget.share() as share:` around all that the request does."""
        return BodyShare(self)

    def take_nowait(self, num_bytes: int) -> None:
        """Raises Overloaded if they do not fit."""
        if self.num_bytes + num_bytes > self._max_bytes:
            raise Overloaded(
                f"the bodies of the requests that are being served have {self.num_bytes:,} bytes, the limit is "
                f"{self._max_bytes:,}; try again in a second",
                code="too_many_bytes",
                retry_after_s=1,
            )
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes


class BodyShare:
    """What one request has taken from the budget; leaving the block gives it back."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._num_bytes = 0

    def take_nowait(self, num_bytes: int) -> None:
        """Raises Overloaded if they do not fit."""
        self._budget.take_nowait(num_bytes)
        self._num_bytes += num_bytes

    def __enter__(self) -> BodyShare:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._budget.give_back(self._num_bytes)
        self._num_bytes = 0


async def read_body(http_request: web.Request, share: BodyShare, *, max_bytes: int, stall_s: float) -> bytes:
    """The whole body, decompressed. Raises InvalidRequest (408, 413), Overloaded, aiohttp's errors of a bad payload.

    `stall_s`: the longest that a client may send nothing, and what it may take beyond what MIN_BYTES_PER_S allows.
    """
    if http_request.content_length is not None and http_request.content_length > max_bytes:
        raise _too_large(http_request.content_length, max_bytes)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    body = bytearray()
    while True:
        left_s = started_s + stall_s + len(body) / MIN_BYTES_PER_S - loop.time()
        try:
            async with asyncio.timeout(min(stall_s, left_s)):
                chunk = await http_request.content.readany()
        except TimeoutError:
            raise InvalidRequest(
                f"the request body came too slowly: {len(body):,} bytes in {loop.time() - started_s:.0f} s",
                code="request_timeout",
                status=408,
            ) from None
        if not chunk:
            return bytes(body)
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(len(body) + len(chunk), max_bytes)
        share.take_nowait(len(chunk))
        body += chunk


def _too_large(num_bytes: int, max_bytes: int) -> InvalidRequest:
    return InvalidRequest(
        f"the request body is too large: {num_bytes:,} bytes, the limit is {max_bytes:,} (server.max_request_bytes)",
        code="request_too_large",
        status=413,
    )
