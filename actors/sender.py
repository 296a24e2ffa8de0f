"""Sending without waiting and without losing: what an actor holds in front of each outbox."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from ..errors import WouldBlock
from ..mailbox import Outbox
from .faults import Faults

M = TypeVar("M", bound=msgspec.Struct)


class Sender(Generic[M]):
    """Sends in order; what finds no room is kept and sent as soon as there is.

    What is kept is bounded by the caller: a few messages for each live request (see the tables in `mailbox/messages`)
    and one message of deltas, for an actor builds no further deltas while `is_blocked`: later tokens merge instead.
    """

    def __init__(self, outbox: Outbox[M], faults: Faults) -> None:
        """`faults` of the actor that sends: what goes wrong with a kept message, or in `on_room`, is reported there."""
        self.on_room: Callable[[], None] | None = None
        """Called each time the last kept message has gone."""
        self._outbox = outbox
        self._faults = faults
        self._kept: deque[M] = deque()
        self._drainer: asyncio.Task[None] | None = None

    @property
    def is_blocked(self) -> bool:
        """Messages are kept; one more would wait behind them."""
        return bool(self._kept)

    @property
    def num_kept(self) -> int:
        """Messages that wait for room."""
        return len(self._kept)

    def send_nowait(self, message: M) -> None:
        """Send now, or raise WouldBlock; the message is not kept."""
        if self._kept:
            raise WouldBlock
        self._outbox.send_nowait(message)

    def post(self, message: M) -> None:
        """Send now if there is room, else keep the message behind those already kept."""
        try:
            self.send_nowait(message)
        except WouldBlock:
            self._kept.append(message)
            if self._drainer is None or self._drainer.done():
                self._drainer = self._faults.start(self._drain())

    async def _drain(self) -> None:
        while self._kept:
            await self._outbox.wait_room()
            try:
                while self._kept:
                    self._outbox.send_nowait(self._kept[0])
                    self._kept.popleft()
            except WouldBlock:
                continue
            if self.on_room is not None:
                self.on_room()  # what it posts may find no room again, and is then kept for this same loop

    def replace(self, outbox: Outbox[M]) -> None:
        """The receiver died: what was kept for it is dropped, and `outbox` leads to its successor."""
        self.close()
        self._kept.clear()
        self._drainer = None
        self._outbox = outbox

    def close(self) -> None:
        if self._drainer is not None:
            self._drainer.cancel()
        self._outbox.close()
