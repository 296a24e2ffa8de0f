"""The actor loop: wait for messages, handle all that wait, then send what they brought about."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from ..mailbox import Inbox
from .faults import Faults

M = TypeVar("M", bound=msgspec.Struct)


class Actor(Protocol[M]):
    """Owns its state. The loop calls `handle` and `flush` from one task, so neither needs a lock."""

    name: str
    inbox: Inbox[M]
    faults: Faults
    """Of its background tasks and callbacks."""

    def handle(self, message: M) -> None:
        """Take one message; never waits. An exception ends the process, and the supervisor acts."""
        ...

    def gone(self, actor: str) -> None:
        """A neighbour died. What it sent is discarded already, and messages to it go to its successor."""
        ...

    def close(self) -> None:
        """End background work, close the mailboxes."""
        ...

    def flush(self) -> None:
        """Called after a batch of messages: send on what they produced, one message a receiver."""
        ...


async def run_actor(actor: Actor[M]) -> None:
    """Run an actor until it is cancelled or a fault of it is reported. A message waits one pass of the event loop."""
    await actor.faults.run(_handle_messages(actor))


async def _handle_messages(actor: Actor[M]) -> None:
    inbox = actor.inbox
    while True:
        await inbox.wait_message()
        for message in inbox.receive_all_nowait():
            actor.handle(message)
        actor.flush()
