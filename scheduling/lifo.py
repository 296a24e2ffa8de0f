"""Choice of a victim when KV blocks run out: last in, first out."""

from __future__ import annotations

from .request import Request


def last_admitted(running: dict[int, Request]) -> Request:
    """The running request to preempt: the one admitted last, which may be the one that asks.

    Running requests are planned in the order of their admission, so a victim never stands in the plan being made.
    """
    return running[next(reversed(running))]
