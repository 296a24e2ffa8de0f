"""Choice of a victim when KV blocks run out: the one whose going costs least.

What is lost are computed tokens in blocks that nobody else uses, unless they are found again. With a prefix cache most
are, for a victim is the next to come back, and the others take only as many of its blocks as they grow by meanwhile. So
nothing is counted as lost, and the last in plan order goes. (The request that has computed least would be taken whole
by that growth, come back at once and push out the next: in a simulated conversation trace three times the preemptions
and ten times the tokens computed again.) Without a cache all is lost, and the one that has computed least goes; for
that case vllm-project/vllm issue 54644 measured the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from .policy_views import VictimView
from .request import Request
from .victims import candidates

PATIENCE = 4
"""Preemptions after which others go first. Fewer spread the work that is lost over more requests, and make it more."""


def choose_victim(running: Sequence[Request], view: VictimView) -> Request:
    """The least tokens lost, of those preempted seldom, the last in plan order among equals.

    One whose going frees nothing, because others use all its blocks, is only taken when that holds for all.
    """
    return min(reversed(candidates(running)), key=lambda request: _price(request, view))


def _price(request: Request, view: VictimView) -> tuple[bool, int, int]:
    """A lower one goes first."""
    num_won = view.num_won_blocks(request)
    num_lost = 0
    if not view.prefix_caching:
        num_lost = request.num_computed_tokens - (len(request.block_ids) - num_won) * view.block_size
    return (num_won == 0, request.num_preemptions // PATIENCE, num_lost)
