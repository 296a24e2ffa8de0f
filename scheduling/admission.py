"""Requests that take a row in the step that is being planned."""

from __future__ import annotations

import numpy as np

from ..kv_cache.block_pool import blocks_for
from .loading import begin_loading, num_loadable
from .next_in_line import next_in_line
from .plan_builder import PlanBuilder
from .policy_views import AdmissionView, RunningCounts
from .request import Request
from .row_arrays import RowArrays
from .state import SchedulerState
from .wait_clock import WaitCause


def admit_waiting(state: SchedulerState, plan: PlanBuilder) -> WaitCause | None:
    """Admit those whose turn it is until budget, rows, blocks or the plan's room for new rows run out, which is
    returned; None: nobody waits who could go."""
    if len(state.lines):
        state.register_noted_blocks()
    while len(state.lines):
        if not plan.budget:
            return WaitCause.BUDGET
        if not state.rows.num_free:
            return WaitCause.SEQUENCES
        request = next_in_line(state)
        if request is None:
            return None
        if not plan.can_place(request):
            return WaitCause.BUDGET
        cached = request.block_ids or state.cached_blocks(request)
        if num_loadable(state, request) > len(cached) * state.limits.block_size:
            if not _has_room(state, request, 0, num_loadable(state, request)):
                return WaitCause.BLOCKS
            begin_loading(state, request)
            continue
        num_tokens = _allocate(state, plan, request, cached)
        if not num_tokens:
            return WaitCause.BLOCKS
        _count_admission(state, request)
        state.start(request)
        assert request.row is not None
        state.rows.set_prefilling(request.row, num_tokens < request.num_uncomputed_tokens)
        state.ledgers.chunk(request, num_tokens)
        plan.place(request, num_tokens)
        state.cache_full_blocks(request)
    return None


def release_idle(state: SchedulerState) -> bool:
    """Take rows and blocks from those that a trial lets wait in them; True if there were any."""
    idle = [request for request in state.running.values() if request.key not in state.trial.group]
    for request in reversed(idle):
        state.preempt(request, "trial")
    return bool(idle)


def _allocate(state: SchedulerState, plan: PlanBuilder, request: Request, cached: list[int]) -> int:
    """Blocks for what is computed already and the first chunk, whose length is returned; 0, and nothing is changed, if
    there is no room for them. `cached`: blocks that it holds already, or else those that the prefix cache has."""
    pool, limits = state.pool, state.limits
    held = request.block_ids
    num_cached = len(cached) * limits.block_size
    num_tokens = min(request.num_tokens - num_cached, limits.max_chunk, plan.budget)
    num_free_cached = 0 if held else pool.count_users(cached, 0)
    if not _has_room(state, request, num_cached, num_tokens, num_free_cached):
        return 0
    if not held:
        pool.share(cached)
    num_new = blocks_for(num_cached + num_tokens, limits.block_size) - len(cached)
    request.block_ids = cached + pool.allocate(num_new)
    request.num_loaded_tokens = num_cached
    return num_tokens


def _has_room(
    state: SchedulerState, request: Request, num_cached: int, num_tokens: int, num_free_cached: int = 0
) -> bool:
    """The pool has what the admission rule wants for the request, and keeps the watermark's share while something runs.

    `num_free_cached`: free blocks that it shares, and which so are not free for anything else.
    """
    limits = state.limits
    view = AdmissionView(limits.block_size, limits.num_blocks, lambda: _running_counts(state.rows), state.estimate)
    num_wanted = state.policies.blocks_wanted(request, num_cached, num_tokens, view)
    num_kept = limits.watermark_blocks if state.running else 0
    return state.pool.num_free - num_free_cached - num_wanted >= num_kept


def _running_counts(arrays: RowArrays[Request]) -> RunningCounts:
    rows = arrays.in_order()
    num_tokens, max_total = arrays.num_tokens[rows].astype(np.int64), arrays.max_total[rows].astype(np.int64)
    return RunningCounts(num_tokens, arrays.num_places[rows].astype(np.int64) // arrays.block_size, max_total)


def _count_admission(state: SchedulerState, request: Request) -> None:
    counters = state.counters
    num_cached = request.num_loaded_tokens
    if state.limits.prefix_caching and request.prompt_logprobs is None:
        counters.prefix_cache_queries += request.num_tokens
        counters.prefix_cache_hits += num_cached
    if request.cached_tokens is None:
        request.cached_tokens = min(num_cached, request.num_prompt_tokens)
        num_new_tokens = request.num_prompt_tokens - request.num_counted_tokens
        counters.prompt_tokens += num_new_tokens
        counters.num_admitted += 1
        counters.queue_time_ns += state.now_ns - request.queued_ns
        request.first_row_ns = state.now_ns
        state.tenants.charge(request.tenant, num_new_tokens)
