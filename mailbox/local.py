"""The mailbox transport within one process: the message passes by reference."""

from __future__ import annotations

from typing import Generic

from ..errors import EndOfStream
from .inbox import Inbox, M


class LocalOutbox(Generic[M]):
    """Puts the very object into `inbox`, in the name of `sender`. Messages are frozen, so sharing them is safe.

    Sender and receiver live on one event loop. `max_bytes` of the inbox is not checked: nothing is encoded.
    Messages sent after the inbox was closed or this sender detached are counted as discarded.
    """

    def __init__(self, inbox: Inbox[M], sender: str = "local") -> None:
        self._inbox = inbox
        self._sender = inbox.attach_local(sender)
        self._is_closed = False

    def send_nowait(self, message: M) -> None:
        """Hand `message` over; WouldBlock when the inbox is full, EndOfStream after `close`."""
        if self._is_closed:
            raise EndOfStream("this outbox is closed")
        self._inbox.put_nowait(self._sender, message)

    async def wait_room(self) -> None:
        """Wait until the inbox has room; EndOfStream after `close`, also for those who wait already."""
        while True:
            if self._is_closed:
                raise EndOfStream("this outbox is closed")
            if not self._inbox.is_full:
                return
            await self._inbox.room_waiters.wait()

    def close(self) -> None:
        """Give the end up; what was sent stays in the inbox."""
        self._is_closed = True
        self._inbox.room_waiters.wake_all()
