"""Mailboxes: how one actor's messages reach another. One interface, two transports, everything bounded.

See `interface.py` for the contract; the messages themselves are in `messages/`, one module per boundary.
"""

from .inbox import Inbox
from .interface import InboxStatistics, Outbox
from .ipc import ZmqOutbox, bind_listener
from .local import LocalOutbox

__all__ = ["Inbox", "InboxStatistics", "LocalOutbox", "Outbox", "ZmqOutbox", "bind_listener"]
