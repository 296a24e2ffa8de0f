"""What policies may look at, and the shapes of the three kinds of them. A policy is pure: values in, a choice out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from .request import Rank, Request
from .row_arrays import Int64s


class WaitingLines(Protocol):
    """Who waits and could go, in lines (`Order.line_of`), each sorted by `Order.rank`."""

    def __len__(self) -> int:
        """Requests in all lines."""
        ...

    def lines(self) -> Sequence[str]:
        """The lines that are not empty, in the order in which they became so."""
        ...

    def first(self, line: str) -> Request | None:
        """The lowest rank of a line."""
        ...

    def __iter__(self) -> Iterator[Request]:
        """Everybody, in no particular order."""
        ...


class OrderView(NamedTuple):
    """What the choice of the next request may depend on."""

    now_ns: int
    served_tokens: Mapping[str, int]
    """By tenant, of those that wait in line, for an order with a line a tenant: virtual tokens, which only differences
    mean anything of."""
    num_cached_tokens: Callable[[Request], int]
    """Tokens of a waiting request that the prefix cache holds now."""
    aging_tokens_per_s: int
    aging_max_tokens: int


class Order(NamedTuple):
    """Who is admitted next. FCFS: one line; rank (1, 0, order of coming), preempted ones before: (0, 0, the same)."""

    line_of: Callable[[Request], str]
    rank: Callable[[Request], Rank]
    """Fixed while it waits; a lower one first."""
    choose: Callable[[WaitingLines, OrderView], Request | None]
    """None if nobody waits. The choice is tried; if it does not fit, nobody is admitted in this step."""
    sorts_running: bool = False
    """Rows are planned by rank, so that under a short budget the first get their tokens; else as they were admitted."""


class VictimView(NamedTuple):
    """What the choice of a victim may depend on."""

    num_won_blocks: Callable[[Request], int]
    """Blocks that nobody else uses: what its going would free."""
    block_size: int
    """Tokens a block."""
    prefix_caching: bool = True
    """Freed blocks can be found again until somebody takes them."""


ChooseVictim = Callable[[Sequence[Request], VictimView], Request]
"""Who gives its blocks up, of those that run, in plan order, the last with the least claim. There is at least one; the
first is only taken if it is alone, so that somebody always gets on."""


class Estimate(NamedTuple):
    """What share of the output that it may still write a request is taken to write, in parts per million."""

    share_ppm: int


class RunningCounts(NamedTuple):
    """Of n requests that run."""

    num_tokens: Int64s
    """[n]: known"""
    num_blocks: Int64s
    """[n]: held"""
    max_total: Int64s
    """[n]: tokens with which each ends"""


class AdmissionView(NamedTuple):
    """What the room that an admission needs may depend on. Blocks, of `block_size` tokens."""

    block_size: int
    num_blocks: int
    running: Callable[[], RunningCounts]
    """Counts them: a rule that does not look at who runs does not pay for it."""
    estimate: Estimate


BlocksWanted = Callable[[Request, int, int, AdmissionView], int]
"""(request, num_cached_tokens, num_first_tokens, view) -> blocks that must be free in the pool for it, beside the
cached ones: at least those for its first `num_first_tokens` behind the cached ones, at most what makes it certain to be
admitted when the pool is empty."""
