"""What an actor sees of a mailbox: the sending end as a protocol, and the statistics of the receiving end.

One `Inbox` belongs to one actor and is fed by several senders, each through an `Outbox` of its own. Whether an outbox
passes references or writes to a socket is decided by the topology file and not seen by the actor:

| outbox        | sender and receiver | what travels           | where messages can wait                         |
|---------------|---------------------|------------------------|-------------------------------------------------|
| `LocalOutbox` | in one process      | the object itself      | inbox                                           |
| `ZmqOutbox`   | in two, on one host | MessagePack, no pickle | queue of the sender, kernel, queue of the inbox |

The contract, the same for both (tests/mailbox/test_conformance.py):

- Messages of one sender arrive in the order in which they were sent; between senders there is no order.
- Everything is bounded. A full path makes `send_nowait` raise `WouldBlock`; nothing is ever dropped to make room.
- Only the owner of an end may close it. Using an end that oneself has closed raises `EndOfStream`.
- A sender does not learn from its outbox that the receiver is gone: that is told by the supervisor (`Gone`). Until then
  what it sends is lost, or `send_nowait` raises `WouldBlock`.
- An idle mailbox uses no CPU: there is no timer anywhere.
- Every method is called from the event loop of its actor.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

M_contra = TypeVar("M_contra", bound=msgspec.Struct, contravariant=True)


class Outbox(Protocol[M_contra]):
    """One sender's end of a mailbox."""

    def send_nowait(self, message: M_contra) -> None:
        """Hand `message` over. Raises WouldBlock when there is no room, MessageTooLarge when it can never go."""
        ...

    async def wait_room(self) -> None:
        """Wait until `send_nowait` may succeed; another sender can be faster, so callers try again in a loop."""
        ...

    def close(self) -> None:
        """Give the end up; what has not left this process is lost. May be called twice."""
        ...


class InboxStatistics(msgspec.Struct, frozen=True, gc=False):
    """Gauges and counters (since start) of one inbox."""

    num_waiting: int
    """Messages in the inbox; not those that still wait in sockets."""
    capacity: int
    """Messages that the inbox holds at most."""
    num_senders: int
    """Senders attached now."""
    num_received: int
    """Messages that the owner has taken."""
    num_discarded: int
    """Messages dropped by `detach` and `close`, or sent in this process to an inbox that was closed already."""
    is_full: bool
    """Senders wait for the owner of the inbox."""
