"""Sending without waiting and without losing: what an actor holds in front of each outbox."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ..errors import WouldBlock
from ..mailbox import Outbox

M = TypeVar("M")


class Sender(Generic[M]):
    """Sends in order; while the receiver has no room, messages are kept and sent as soon as there is.

    What is kept is bounded by the caller: at most a few messages for each live request (see the tables in
    `mailbox/messages`). Deltas are not kept here: their actor merges them until `on_room`.
    """

    def __init__(self, outbox: Outbox[M]) -> None:
        self.on_room: Callable[[], None] | None = None
        """Called when there is room again after a `send_nowait` that would have blocked."""
        self._outbox = outbox
        self._kept: deque[M] = deque()
        self._was_refused = False
        self._waiter: asyncio.Task[None] | None = None

    def send_nowait(self, message: M) -> None:
        """Send now, or raise WouldBlock without keeping the message and call `on_room` when there is room."""
        try:
            if self._kept:
                raise WouldBlock
            self._outbox.send_nowait(message)
        except WouldBlock:
            self._was_refused = True
            self._wait_for_room()
            raise

    def post(self, message: M) -> None:
        """Send now if there is room, else keep the message behind those already kept."""
        if not self._kept:
            try:
                self._outbox.send_nowait(message)
                return
            except WouldBlock:
                pass
        self._kept.append(message)
        self._wait_for_room()

    def _wait_for_room(self) -> None:
        if self._waiter is None or self._waiter.done():
            self._waiter = asyncio.get_running_loop().create_task(self._send_when_room())

    async def _send_when_room(self) -> None:
        while self._kept or self._was_refused:
            await self._outbox.wait_room()
            try:
                while self._kept:
                    self._outbox.send_nowait(self._kept[0])
                    self._kept.popleft()
            except WouldBlock:
                continue
            if self._was_refused:
                self._was_refused = False
                if self.on_room is not None:
                    self.on_room()

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        self._outbox.close()
