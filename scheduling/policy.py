"""Who comes first: the seam between the scheduler's loop and its policies, and the choice of one.

A policy is two decisions. *Waiting*: which request is admitted next. *Running*: in which order rows get their tokens,
and who has to give its blocks up when they run out. They belong together, for a victim must never stand in the plan
that is being made: its K/V would be found by its blocks' keys although nobody computes them. So rows are planned in an
order whose last one is the victim.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, assert_never

from .fcfs import FirstComeFirstServed
from .limits import PolicyName
from .priority import MostUrgentFirst
from .request import Request


class Policy(Protocol):
    """It knows who waits; who runs is told to it. Each request is added once, and removed before it is added again."""

    def add(self, request: Request) -> None:
        """A new request waits."""
        ...

    def put_back(self, request: Request) -> None:
        """A running request waits again, to be computed anew."""
        ...

    def remove(self, request: Request) -> None:
        """It waits no longer."""
        ...

    def first(self) -> Request | None:
        """The waiting request to admit next."""
        ...

    def order(self, running: dict[int, Request]) -> Iterable[Request]:
        """The running requests, by run in the order of their admission, in the order in which they are planned."""
        ...

    def victim(self, running: dict[int, Request]) -> Request:
        """The last of `order`; there is one."""
        ...


def make_policy(name: PolicyName) -> Policy:
    """The policy that the topology names."""
    match name:
        case "fcfs":
            return FirstComeFirstServed()
        case "priority":
            return MostUrgentFirst()
        case _:
            assert_never(name)
