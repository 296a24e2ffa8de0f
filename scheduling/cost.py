"""Choice of a victim when KV blocks run out: the most blocks won per token that must be computed again.

Blocks that others use as well stay in the pool: they are not won, and their tokens are found again and not lost. A full
block costs the same whoever holds it, so what decides is how well the last block is filled and then how little is lost:
who has computed little goes before who has computed much.
"""

from __future__ import annotations

from collections.abc import Sequence

from .policy_views import VictimView
from .request import Request
from .victims import candidates


def choose_victim(running: Sequence[Request], view: VictimView) -> Request:
    """The cheapest of those preempted least often, the last in plan order among equals.

    One whose going frees nothing is only taken when that holds for all. A request is not taken a second time while one
    that was taken less often will do, so that none is computed over and over for the others' sake.
    """
    last, *others = (_Bid(request, view) for request in reversed(candidates(running)))
    best = last
    for bid in others:
        if bid.beats(best):
            best = bid
    return best.request


class _Bid:
    """What a victim's going brings and costs."""

    __slots__ = ("num_lost", "num_preemptions", "num_won", "request")

    def __init__(self, request: Request, view: VictimView) -> None:
        self.request = request
        self.num_won = view.num_won_blocks(request)
        num_shared_tokens = (len(request.block_ids) - self.num_won) * view.block_size
        self.num_lost = max(1, request.num_computed_tokens - num_shared_tokens)
        """Tokens."""
        self.num_preemptions = request.num_preemptions

    def beats(self, other: _Bid) -> bool:
        """Strictly better; shares are compared crosswise, in integers."""
        if (self.num_won > 0) != (other.num_won > 0):
            return self.num_won > 0
        if self.num_preemptions != other.num_preemptions:
            return self.num_preemptions < other.num_preemptions
        gain, other_gain = self.num_won * other.num_lost, other.num_won * self.num_lost
        if gain != other_gain:
            return gain > other_gain
        return self.num_lost < other.num_lost
