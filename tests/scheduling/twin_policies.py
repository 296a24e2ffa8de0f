"""The policies in the words of the rules: sorted lists, looked through from one end to the other."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.twin_pool import TwinPool
from callboard.tests.scheduling.twin_request import PREEMPTED, TwinRequest


def urgency(request: TwinRequest) -> tuple[int, int, int]:
    """The lower, the more urgent."""
    return request.admit.priority, request.admit.arrival_ns, request.order


def queue_place(request: TwinRequest) -> tuple[bool, int]:
    """The preempted before all others, then as they came."""
    return request.state != PREEMPTED, request.order


def plan_order(policy: str, running: Sequence[TwinRequest]) -> list[TwinRequest]:
    """As they were admitted; under priority the most urgent first."""
    return sorted(running, key=urgency) if policy == "priority" else list(running)


def next_to_admit(policy: str, waiting: Sequence[TwinRequest]) -> TwinRequest | None:
    """Of those that could go."""
    return min(waiting, key=urgency if policy == "priority" else queue_place, default=None)


def victim(preemption: str, in_plan_order: Sequence[TwinRequest]) -> TwinRequest:
    """Who gives its blocks up."""
    assert preemption == "lifo"
    return in_plan_order[-1]


def blocks_wanted(
    limits: SchedulerLimits, pool: TwinPool, request: TwinRequest, num_cached: int, num_first: int
) -> int:
    """Blocks that must be free for an admission, beside the cached ones. A preempted one comes back for all its tokens
    and the next, as far as the pool can hold them at all."""
    assert limits.admission == "chunk"
    num_tokens = num_cached + num_first
    if request.state == PREEMPTED:
        num_tokens = len(request.tokens) + 1
    return min(pool.blocks_for(num_tokens), limits.num_blocks) - num_cached // limits.block_size
