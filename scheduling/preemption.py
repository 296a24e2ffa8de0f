"""Making room when KV blocks run out: a victim's blocks are freed and its tokens computed again later."""

from __future__ import annotations

from .request import Request
from .state import SchedulerState


def make_room(state: SchedulerState, request: Request, num_blocks: int) -> bool:
    """Preempt until `num_blocks` are free for the running `request`; False if it had to go itself.

    The first in the policy's order never has to go: alone it always fits, for `max_total_tokens` respects the pool.
    """
    while num_blocks > state.pool.num_free:
        victim = state.policy.victim(state.running)
        state.preempt(victim)
        state.counters.num_preemptions += 1
        if victim is request:
            return False
    return True
