"""Making room when KV blocks run out: a victim's blocks are freed and its tokens computed again later."""

from __future__ import annotations

from .estimate import after_retract
from .policy_views import VictimView
from .request import Request
from .state import SchedulerState


def preempt_one(state: SchedulerState) -> bool:
    """One running request gives up its blocks; False if there is only one left, which fits alone, for
    `max_total_tokens` respects the pool."""
    running = state.running_in_order()
    if len(running) <= 1:
        return False
    limits = state.limits
    view = VictimView(lambda request: _num_won_blocks(state, request), limits.block_size, limits.prefix_caching)
    victim = state.policies.choose_victim(running, view)
    state.counters.num_preemptions += 1
    victim.num_preemptions += 1
    state.preempt(victim, "blocks")
    if state.limits.admission == "estimate":
        state.estimate = after_retract(state.estimate, state.running_in_order())
    return True


def _num_won_blocks(state: SchedulerState, request: Request) -> int:
    return state.pool.count_users(request.block_ids, 1)
