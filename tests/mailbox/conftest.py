"""A mailbox over either transport, on either event loop: what the conformance suite runs on."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
import uvloop

from callboard.errors import WouldBlock
from callboard.mailbox import Inbox, LocalOutbox, Outbox, ZmqOutbox, bind_listener

MAX_BYTES = 1 << 22


class Number(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """A message with a number, and padding to make it large."""

    value: int
    padding: bytes = b""


class Word(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Another kind, so that the messages are a union."""

    text: str


class Rig:
    """Makes inboxes, connects outboxes to them, closes all of them at the end."""

    Number = Number
    Word = Word
    max_bytes = MAX_BYTES

    def __init__(self, transport: str, folder: str) -> None:
        self.transport = transport
        self._folder = folder
        self._ends: list[Inbox[Any] | Outbox[Any]] = []
        self._num_links = 0

    def inbox(self, capacity: int = 8) -> Inbox[Any]:
        inbox: Inbox[Any] = Inbox(Number | Word, capacity, MAX_BYTES)
        self._ends.append(inbox)
        return inbox

    def outbox(self, inbox: Inbox[Any], sender: str = "a", capacity: int = 8) -> Outbox[Any]:
        outbox: Outbox[Any]
        if self.transport == "local":
            outbox = LocalOutbox(inbox, sender)
        else:
            path, listening_fd = self.listen()
            outbox = ZmqOutbox(path, capacity, MAX_BYTES)
            inbox.attach(sender, path, listening_fd)
        self._ends.append(outbox)
        return outbox

    def listen(self) -> tuple[str, int]:
        """A fresh path and the descriptor of a socket that listens there."""
        self._num_links += 1
        path = os.path.join(self._folder, f"link.{self._num_links}")
        return path, bind_listener(path).detach()

    def keep(self, end: Inbox[Any] | Outbox[Any]) -> None:
        """Close `end`, too."""
        self._ends.append(end)

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self._ends.clear()

    async def num_accepted(self, outbox: Outbox[Any], make: Callable[[int], Any], limit: int) -> int:
        """Send make(0), make(1), ... until WouldBlock holds although the transport had time to move what it can."""
        accepted = 0
        while accepted < limit:
            try:
                outbox.send_nowait(make(accepted))
                accepted += 1
            except WouldBlock:
                try:
                    await asyncio.wait_for(outbox.wait_room(), 0.4)
                except TimeoutError:
                    break
        return accepted


Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function to its end on a fresh loop of the kind, under a watchdog."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_guarded(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def guarded() -> None:
            async with asyncio.timeout(60):
                await main()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(guarded())

    return run_guarded


@pytest.fixture
def folder() -> Iterator[str]:
    """A private directory with a short name: socket paths are short."""
    with tempfile.TemporaryDirectory(prefix="cb") as path:
        yield path


@pytest.fixture
def ipc(folder: str) -> Iterator[Rig]:
    rig = Rig("ipc", folder)
    yield rig
    rig.close()


@pytest.fixture(params=["local", "ipc"])
def rig(request: pytest.FixtureRequest, folder: str) -> Iterator[Rig]:
    rig = Rig(request.param, folder)
    yield rig
    rig.close()
