"""The policies in the words of the rules: lists, looked through from one end to the other."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from callboard.tests.scheduling.twin_request import PREEMPTED, TwinRequest
from callboard.tests.scheduling.twin_state import TwinState

MAX_SORTED = 128
FIRST_SHARE, LOWEST_SHARE, SHARE_STEP = Fraction(7, 10), Fraction(1, 10), Fraction(1, 1000)
MAX_RECKONED, AHEAD, PATIENCE = 4096, 20, 4


def urgency(request: TwinRequest) -> tuple[int, int, int]:
    """The lower, the more urgent."""
    return request.admit.priority, request.admit.arrival_ns, request.order


def queue_place(request: TwinRequest) -> tuple[bool, int]:
    """The preempted before all others, then as they came."""
    return request.state != PREEMPTED, request.order


def plan_order(state: TwinState) -> list[TwinRequest]:
    """As they were admitted; under priority the most urgent first."""
    return sorted(state.running, key=urgency) if state.limits.policy == "priority" else list(state.running)


# Who is admitted next -------------------------------------------------------------------------------------------------


def next_to_admit(state: TwinState) -> TwinRequest | None:
    """Of those that could go."""
    could_go = state.could_go()
    if not could_go:
        return None
    if state.groups:
        tried = {request.key: request for request in could_go}
        return next((tried[key] for key in state.groups[0] if key in tried), None)
    match state.limits.policy:
        case "priority":
            return min(could_go, key=urgency)
        case "fair":
            return _next_of_the_least_served(state, could_go)
        case "cache_aware":
            return _next_with_the_longest_prefix(state, could_go)
        case _:
            return min(could_go, key=queue_place)


def _next_of_the_least_served(state: TwinState, could_go: list[TwinRequest]) -> TwinRequest:
    """Each tenant sends its first; who waits counts as served less, up to a bound."""
    tenants = {request.admit.tenant for request in could_go}
    heads = [min((r for r in could_go if r.admit.tenant == tenant), key=queue_place) for tenant in tenants]

    def claim(head: TwinRequest) -> tuple[int, int]:
        worth = state.limits.fair_aging_tokens_per_s * (state.now_ns - head.queued_ns) // 10**9
        return state.served[head.admit.tenant] - min(worth, state.limits.fair_aging_max_tokens), head.order

    return min(heads, key=claim)


def _next_with_the_longest_prefix(state: TwinState, could_go: list[TwinRequest]) -> TwinRequest:
    """But preempted ones, and one that has waited long, in their order."""
    head, limits = min(could_go, key=queue_place), state.limits
    waited = limits.fair_aging_tokens_per_s * (state.now_ns - head.queued_ns)
    is_old = limits.fair_aging_tokens_per_s > 0 and waited >= limits.fair_aging_max_tokens * 10**9
    if head.state == PREEMPTED or len(could_go) > MAX_SORTED or is_old:
        return head
    return min(could_go, key=lambda request: (-len(state.cached_blocks(request)), request.order))


# Who gives its blocks up ----------------------------------------------------------------------------------------------


def victim(state: TwinState) -> TwinRequest:
    """One of the running; never the first in plan order."""
    rows = plan_order(state)
    assert len(rows) > 1
    if state.limits.preemption == "lifo":
        return rows[-1]
    behind = rows[1:]
    least_urgent = max(request.admit.priority for request in behind)
    candidates = [request for request in behind if request.admit.priority == least_urgent]
    if state.limits.preemption == "retract":
        return min(reversed(candidates), key=lambda r: (len(r.turn_output), -r.num_prompt_tokens))
    return min(reversed(candidates), key=lambda request: _price(state, request))


def _price(state: TwinState, request: TwinRequest) -> tuple[bool, int, int]:
    """Who frees something, has not gone often, and has computed little that is not found again goes first."""
    num_won = len([block for block in request.blocks if state.pool.num_users[block] == 1])
    num_lost = request.num_computed - (len(request.blocks) - num_won) * state.limits.block_size
    return num_won == 0, request.num_preemptions // PATIENCE, 0 if state.limits.prefix_caching else num_lost


# What must be free ----------------------------------------------------------------------------------------------------


def blocks_wanted(state: TwinState, request: TwinRequest, num_cached: int, num_first: int) -> int:
    """Blocks that must be free for an admission, beside those that it has; never more than the pool can have free. A
    preempted one comes back for all its tokens and the next."""
    limits, pool = state.limits, state.pool
    num_blocks = min(pool.blocks_for(len(request.tokens) + 1), limits.num_blocks)
    if limits.admission == "chunk" and request.state != PREEMPTED:
        num_blocks = pool.blocks_for(num_cached + num_first)
    if limits.admission == "whole_prompt":
        num_blocks += sum(max(0, pool.blocks_for(len(r.tokens)) - len(r.blocks)) for r in state.running)
    if limits.admission == "estimate":
        num_blocks = pool.blocks_for(_num_expected(state, request))
        num_blocks += sum(max(0, pool.blocks_for(_num_expected(state, r)) - len(r.blocks)) for r in state.running)
    return min(num_blocks, limits.num_blocks) - num_cached // limits.block_size


def _num_expected(state: TwinState, request: TwinRequest) -> int:
    return len(request.tokens) + max(1, ceil(_num_reckoned(request) * state.share))


def _num_reckoned(request: TwinRequest) -> int:
    return min(MAX_RECKONED, max(0, request.max_total - len(request.tokens)))


def share_after_retract(state: TwinState) -> Fraction:
    """At least what those that still run have written of what they may, in parts per million."""
    written = sum(len(r.turn_output) + AHEAD for r in state.running)
    allowed = sum(len(r.turn_output) + _num_reckoned(r) for r in state.running)
    measured = Fraction(written * 10**6 // max(1, allowed), 10**6) if state.running else Fraction(0)
    return max(state.share, min(Fraction(1), measured))


def share_after_step(share: Fraction) -> Fraction:
    """It sinks a little with each."""
    return max(LOWEST_SHARE, share - SHARE_STEP)
