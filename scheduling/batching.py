"""One step's rows: the running first, then those admitted from waiting, under one token budget."""

from __future__ import annotations

from ..kv_cache.block_pool import blocks_for
from ..kv_cache.prefix_cache import find_prefix
from .plan_builder import PlanBuilder
from .preemption import make_room
from .request import Request, RequestState
from .state import SchedulerState


def schedule_running(state: SchedulerState, plan: PlanBuilder) -> bool:
    """Give every running request what it needs while the budget lasts; True if one was preempted.

    Each gets at least 1 token if there are no more rows than budget, for one token is kept for each that comes behind.
    One that gets nothing is skipped. They are planned in the policy's order, so that a victim never stands in the plan.
    During a trial only the group that is tried runs.
    """
    num_preemptions = state.counters.num_preemptions
    candidates = [request for request in state.policy.order(state.running) if request.can_be_planned]
    if state.trial.is_active:
        candidates = [request for request in candidates if request.key in state.trial.group]
    for num_before, request in enumerate(candidates):
        if plan.budget == 0:
            break
        if request.run is None:
            continue  # preempted for one before it
        num_behind = len(candidates) - num_before - 1
        share = max(1, plan.budget - num_behind)
        num_tokens = min(request.num_uncomputed_tokens, state.limits.max_chunk, share)
        num_places = blocks_for(request.num_computed_tokens + num_tokens, state.limits.block_size)
        num_blocks = num_places - len(request.block_ids)
        if num_blocks > 0:
            if not make_room(state, request, num_blocks):
                continue
            block_ids = state.pool.allocate(num_blocks)
            request.block_ids += block_ids
            plan.append_blocks(request, block_ids)
        plan.schedule(request, num_tokens)
        state.cache_full_blocks(request)
    return state.counters.num_preemptions > num_preemptions


def admit_waiting(state: SchedulerState, plan: PlanBuilder) -> None:
    """Admit those whose turn it is until budget, rows, blocks or the plan's room for new rows run out."""
    while plan.budget and state.rows.num_free:
        request = _next_to_try(state) if state.trial.is_active else state.policy.first()
        if request is None or not plan.can_place(request):
            return
        num_tokens = _allocate_first(state, plan, request)
        if not num_tokens:
            return
        _count_admission(state, request)
        state.start(request)
        plan.place(request)
        plan.schedule(request, num_tokens)
        state.cache_full_blocks(request)


def release_idle(state: SchedulerState) -> bool:
    """Take rows and blocks from those that a trial lets wait in them; True if there were any."""
    idle = [request for request in state.running.values() if request.key not in state.trial.group]
    for request in reversed(idle):
        state.preempt(request)
    return bool(idle)


def _next_to_try(state: SchedulerState) -> Request | None:
    """The first of the group that is tried which waits."""
    return next((state.waiting[key] for key in state.trial.group if key in state.waiting), None)


def _allocate_first(state: SchedulerState, plan: PlanBuilder, request: Request) -> int:
    """Blocks for the cached prefix and the first chunk, whose length is returned.

    0, and nothing is changed, if fewer blocks would stay free than the watermark asks for while something runs. A
    preempted request comes back only when all its tokens and the next fit, or it would soon be preempted again. One
    that gathers log-probabilities of its prompt finds no prefix, since each position must be computed.
    """
    pool, limits = state.pool, state.limits
    gathers = request.prompt_logprobs is not None
    cached = [] if gathers else find_prefix(pool, request.block_keys, request.token_ids)
    num_cached = len(cached) * limits.block_size
    num_tokens = min(request.num_tokens - num_cached, limits.max_chunk, plan.budget)
    num_blocks = blocks_for(num_cached + num_tokens, limits.block_size)
    num_wanted = num_blocks
    if request.state is RequestState.PREEMPTED:
        num_wanted = min(blocks_for(request.num_tokens + 1, limits.block_size), limits.num_blocks)
    num_free = pool.num_free - sum(pool.is_free(block) for block in cached)
    if num_free - (num_wanted - len(cached)) < (limits.watermark_blocks if state.running else 0):
        return 0
    pool.share(cached)
    request.block_ids = cached + pool.allocate(num_blocks - len(cached))
    request.num_computed_tokens = num_cached
    request.num_registered_blocks = len(cached)
    return num_tokens


def _count_admission(state: SchedulerState, request: Request) -> None:
    counters = state.counters
    num_cached = request.num_computed_tokens
    if state.limits.prefix_caching and request.prompt_logprobs is None:
        counters.prefix_cache_queries += request.num_tokens
        counters.prefix_cache_hits += num_cached
    if request.cached_tokens is None:
        request.cached_tokens = min(num_cached, request.num_prompt_tokens)
        counters.prompt_tokens += request.num_prompt_tokens
        counters.num_admitted += 1
        counters.queue_time_ns += state.now_ns - request.queued_ns
        request.first_row_ns = state.now_ns
