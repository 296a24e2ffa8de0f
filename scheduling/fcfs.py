"""First come, first served: one line, the preempted at its head."""

from __future__ import annotations

from .policy_views import Order, OrderView, WaitingLines
from .request import Rank, Request, RequestState

LINE = ""
"""The only line of an order that has one."""


def rank(request: Request) -> Rank:
    """Preempted ones before new ones, each in the order of their coming.

    Who was preempted had begun: its blocks may still be found, and its client has waited longest.
    """
    return (0 if request.state is RequestState.PREEMPTED else 1, 0, request.rank[2])


def one_line(_request: Request) -> str:
    """Everybody stands in the same line."""
    return LINE


def first_in_line(waiting: WaitingLines, _view: OrderView) -> Request | None:
    """The head of the only line."""
    return waiting.first(LINE)


ORDER = Order(line_of=one_line, rank=rank, choose=first_in_line)
