"""The receiving end of a mailbox: one for each actor, fed by several senders over both transports."""

from __future__ import annotations

import asyncio
from collections import deque
from types import UnionType
from typing import Generic, TypeVar

import msgspec

from ..errors import EndOfStream, ProtocolViolation, WouldBlock
from .interface import InboxStatistics
from .ipc import ZmqSource
from .waiters import Waiters

M = TypeVar("M", bound=msgspec.Struct)


class Inbox(Generic[M]):
    """At most `capacity` messages of type `message_type` (a struct or a closed union of tagged structs) wait here.

    `max_bytes` is the largest encoded message that is taken from a socket. A full inbox does not read its sockets, so
    that their senders run against their own bounds; sockets are read in turn, one message each. Encoded messages are
    decoded when the owner takes them: a broken one raises ProtocolViolation at its place in the order.
    """

    def __init__(self, message_type: type[M] | UnionType, capacity: int, max_bytes: int) -> None:
        if capacity < 1 or max_bytes < 1:
            raise ValueError(f"capacity {capacity} and max_bytes {max_bytes} must be at least 1")
        self.room_waiters = Waiters()
        """Local senders that wait for room."""
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_type)
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[str, M | bytes]] = deque()
        self._sources: deque[ZmqSource] = deque()
        self._local_senders: set[str] = set()
        self._message_waiters = Waiters()
        self._is_stalled = False
        """The sockets are not watched, for the inbox was full; messages may wait in them."""
        self._refill: asyncio.Handle | None = None
        self._is_closed = False
        self._num_received = 0
        self._num_discarded = 0

    # Senders

    def attach(self, sender: str, path: str, listening_fd: int) -> None:
        """Read from the Unix socket at `path` that is bound and listens as `listening_fd`, in the name of `sender`.

        The descriptor belongs to the inbox from here on. Needs the running event loop of the actor.
        """
        self._check_sender(sender)
        self._sources.append(ZmqSource(sender, path, listening_fd, self._capacity, self._max_bytes))
        self._watch_sources()
        self._read_sources()

    def attach_local(self, sender: str) -> str:
        """Take messages by reference in the name of `sender` (called by `LocalOutbox`); returns the name."""
        self._check_sender(sender)
        self._local_senders.add(sender)
        return sender

    def detach(self, sender: str) -> None:
        """Close the link of `sender` and discard what it sent and the owner has not taken.

        ValueError for a name that is not attached; nothing is left to do in a closed inbox.
        """
        if self._is_closed:
            return
        if sender in self._local_senders:
            self._local_senders.remove(sender)
        else:
            source = next((source for source in self._sources if source.sender == sender), None)
            if source is None:
                raise ValueError(f"no sender {sender!r} is attached to this inbox")
            self._sources.remove(source)
            source.close()
        kept = [entry for entry in self._waiting if entry[0] != sender]
        self._num_discarded += len(self._waiting) - len(kept)
        self._waiting = deque(kept)
        self._after_room_was_made()

    def put_nowait(self, sender: str, message: M) -> None:
        """Take `message` by reference (called by `LocalOutbox`); WouldBlock when the inbox is full."""
        if sender not in self._local_senders:
            self._num_discarded += 1
            return
        if len(self._waiting) >= self._capacity:
            raise WouldBlock(f"the inbox holds {self._capacity} messages, its limit")
        self._waiting.append((sender, message))
        self._message_waiters.wake_all()

    @property
    def is_full(self) -> bool:
        """True while a local sender would have to wait."""
        return len(self._waiting) >= self._capacity

    # Owner

    async def receive(self) -> M:
        """The next message. Raises ProtocolViolation, naming the sender, for one that cannot be decoded."""
        await self.wait_message()
        return self._take()

    def receive_nowait(self) -> M:
        """The next message, WouldBlock if none is there; ProtocolViolation as in `receive`."""
        self._check_open()
        if not self._waiting:
            self._read_sources()
        if not self._waiting:
            raise WouldBlock("no message is waiting")
        return self._take()

    def receive_all_nowait(self) -> list[M]:
        """Everything that waits in the inbox, at most `capacity` messages, possibly none.

        If one cannot be decoded, those before it are returned first and the next call raises ProtocolViolation.
        """
        self._check_open()
        self._read_sources()
        messages: list[M] = []
        while self._waiting:
            entry = self._waiting[0]
            try:
                messages.append(self._take())
            except ProtocolViolation:
                if not messages:
                    raise
                self._waiting.appendleft(entry)
                break
        return messages

    async def wait_message(self) -> None:
        """Wait until a message is there to be taken; EndOfStream after `close`, also for those who wait already."""
        self._check_open()
        while not self._waiting:
            await self._message_waiters.wait()
            self._check_open()

    def close(self) -> None:
        """Close all links and discard what waits. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for source in self._sources:
            source.close()
        self._sources.clear()
        self._local_senders.clear()
        if self._refill is not None:
            self._refill.cancel()
            self._refill = None
        self._num_discarded += len(self._waiting)
        self._waiting.clear()
        self._message_waiters.wake_all()
        self.room_waiters.wake_all()

    def statistics(self) -> InboxStatistics:
        """Gauges and counters of now."""
        return InboxStatistics(
            num_waiting=len(self._waiting),
            capacity=self._capacity,
            num_senders=len(self._sources) + len(self._local_senders),
            num_received=self._num_received,
            num_discarded=self._num_discarded,
            is_full=self.is_full,
        )

    # Inside

    def _check_open(self) -> None:
        if self._is_closed:
            raise EndOfStream("this inbox is closed")

    def _check_sender(self, sender: str) -> None:
        self._check_open()
        if sender in self._local_senders or any(source.sender == sender for source in self._sources):
            raise ValueError(f"sender {sender!r} is attached to this inbox already")

    def _take(self) -> M:
        sender, content = self._waiting.popleft()
        self._after_room_was_made()
        message = self._decode(sender, content) if isinstance(content, bytes) else content
        self._num_received += 1
        return message

    def _decode(self, sender: str, payload: bytes) -> M:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ProtocolViolation(f"message of {len(payload)} bytes from {sender!r}: {error}") from error

    def _after_room_was_made(self) -> None:
        """Local senders first: they are woken before the sockets are read again."""
        self.room_waiters.wake_all()
        if self._is_stalled and self._refill is None:
            self._refill = asyncio.get_running_loop().call_soon(self._read_sources)

    def _read_sources(self) -> None:
        """Move messages from the sockets into the inbox, in turn, until they are empty or the inbox is full."""
        if self._refill is not None:
            self._refill.cancel()
            self._refill = None
        num_empty = 0
        while num_empty < len(self._sources) and len(self._waiting) < self._capacity:
            source = self._sources[0]
            self._sources.rotate(-1)
            payload = source.receive_nowait()
            if payload is None:
                num_empty += 1
            else:
                num_empty = 0
                self._waiting.append((source.sender, payload))
        if num_empty >= len(self._sources):
            self._watch_sources()
        else:
            self._stall()
        if self._waiting:
            self._message_waiters.wake_all()

    def _watch_sources(self) -> None:
        if self._sources:
            loop = asyncio.get_running_loop()
            for source in self._sources:
                source.watch(loop, self._read_sources)
        self._is_stalled = False

    def _stall(self) -> None:
        for source in self._sources:
            source.unwatch()
        self._is_stalled = True
