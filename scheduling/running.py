"""The rows that run already: who has to go, and what each of the others computes in the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .drafting import can_go_on, drafts_wanted, drop_drafts, with_drafts
from .loading import lose_one_loaded
from .plan_builder import PlanBuilder, Share
from .preemption import preempt_one
from .request import Request
from .row_arrays import ONE, PLAN_FIELDS, ZERO, Bools, Int32s, RowIndexes
from .state import SchedulerState


class _Wanted(NamedTuple):
    """Of n rows that can be planned, in plan order."""

    rows: RowIndexes
    num_tokens: Int32s
    """What each computes under the budget, drafts included; 0: nothing."""
    num_left: Int32s
    """Tokens until it can sample."""
    num_computed: Int32s
    """Where it begins."""
    growing: RowIndexes
    """[m] rows, those of them that need more blocks."""
    num_blocks: Int32s
    """[m]: how many, at least 1."""


_NO_ROWS: RowIndexes = np.zeros(0, np.intp)
_NO_COUNTS: Int32s = np.zeros(0, np.int32)
_NOTHING = _Wanted(_NO_ROWS, _NO_COUNTS, _NO_COUNTS, _NO_COUNTS, _NO_ROWS, _NO_COUNTS)


def schedule_running(state: SchedulerState, plan: PlanBuilder) -> bool:
    """Give every running request what it needs while the budget lasts; True if blocks were short, so that nobody is to
    be admitted.

    Each gets at least 1 token if there are no more rows than budget, for one token is kept for each that comes behind;
    one that gets nothing is skipped. If blocks run out, drafts go first, then victims until the others fit: before
    anything is planned, so that no victim stands in the plan. During a trial only the group that is tried runs.
    """
    is_short = False
    state.register_noted_blocks()
    wanted = _wanted(state, drafts=True)
    if np.add.reduce(wanted.num_blocks) > state.pool.num_free and state.speculates:
        drop_drafts(state)
        wanted = _wanted(state, drafts=False)
    while np.add.reduce(wanted.num_blocks) > state.pool.num_free:
        is_short = True
        if not preempt_one(state) and not lose_one_loaded(state):
            # Alone every request fits, but what is on its way from elsewhere holds blocks until it is there.
            wanted = _NOTHING
            break
        wanted = _wanted(state, drafts=False)
    _schedule(state, plan, wanted)
    _note_full_blocks(state)
    return is_short


def _wanted(state: SchedulerState, *, drafts: bool) -> _Wanted:
    """drafts: whether there are blocks for guesses, too."""
    arrays, limits = state.rows, state.limits
    rows = rows_in_order(state)
    fields = arrays.table[PLAN_FIELDS].take(rows, axis=1)
    num_computed, num_places, num_expected, max_total = fields[0], fields[1], fields[3], fields[5]
    num_left = num_expected - num_computed
    can_go = np.minimum(max_total - num_expected, num_left) > ZERO
    if state.speculates:
        can_go &= can_go_on(state, rows, fields, drafts=drafts)
    if np.count_nonzero(can_go) < len(rows):
        fields, rows, num_left = fields[:, can_go], rows[can_go], num_left[can_go]
        num_computed, num_places = num_computed[can_go], num_places[can_go]
    num_wanted = num_left
    if state.speculates and drafts:
        num_wanted = num_left + drafts_wanted(state, rows, fields)
    if np.add.reduce(num_wanted) > len(rows) or len(rows) > limits.max_num_batched_tokens:
        num_wanted = _under_budget(np.minimum(num_wanted, limits.max_chunk), limits.max_num_batched_tokens)
    ends = num_computed + num_wanted
    if arrays.num_all_ahead:
        ends = np.minimum(ends + arrays.num_ahead[rows], fields[5] - ONE)  # the last token is not computed
    num_lacking = ends - num_places
    is_growing = (num_lacking > ZERO).nonzero()[0]
    num_blocks = -(-num_lacking[is_growing] // limits.block_size) if len(is_growing) else _NO_COUNTS
    return _Wanted(rows, num_wanted, num_left, num_computed, rows[is_growing], num_blocks)


def rows_in_order(state: SchedulerState) -> RowIndexes:
    order = state.policies.order
    if not state.trial.is_active:
        return state.rows.by_rank(order.rank) if order.sorts_running else state.rows.in_order()
    tried = [request.row for request in state.running_in_order() if request.key in state.trial.group]
    return np.array(tried, np.intp)


def _under_budget(num_tokens: Int32s, budget: int) -> Int32s:
    """What each of n rows that want `num_tokens[i]` >= 1 gets: in order, but one token is kept for each behind it.

    Budget 10: [8, 8, 1] -> [8, 1, 1]; budget 2: [1, 1, 1] -> [1, 1, 0].
    """
    num_rows = len(num_tokens)
    if np.add.reduce(num_tokens) <= budget:
        return num_tokens
    if num_rows >= budget:
        return (np.arange(num_rows) < budget).astype(np.int32)
    beyond_one = np.minimum(np.cumsum(num_tokens - 1, dtype=np.int64), budget - num_rows)
    return (1 + np.diff(beyond_one, prepend=0)).astype(np.int32)


def _schedule(state: SchedulerState, plan: PlanBuilder, wanted: _Wanted) -> None:
    rows, num_tokens, num_left, starts, growing, num_blocks = wanted
    if np.count_nonzero(num_tokens) < len(rows):
        is_planned = num_tokens > 0
        rows, num_tokens, num_left = rows[is_planned], num_tokens[is_planned], num_left[is_planned]
        starts = starts[is_planned]
    if not len(rows):
        return
    arrays = state.rows
    requests = arrays.of(rows)
    num_drafts: Int32s | None = None
    if state.speculates:
        num_drafts = np.maximum(num_tokens - num_left, ZERO)
        num_tokens = num_tokens - num_drafts
    if len(growing):
        has_drafts = None if num_drafts is None else np.isin(growing, rows[num_drafts > ZERO])
        _give_blocks(state, plan, growing, num_blocks, has_drafts)
    if arrays.num_prefilling:
        _note_chunks(state, requests, rows, num_tokens, num_tokens < num_left)
    share = Share(requests, rows, starts, num_tokens, num_tokens == num_left)
    plan.schedule(share if num_drafts is None else with_drafts(state, share, num_drafts))


def _note_chunks(
    state: SchedulerState, requests: Sequence[Request], rows: RowIndexes, num_tokens: Int32s, is_unfinished: Bools
) -> None:
    """Prompts that are computed in pieces; `is_unfinished`: [n] something is left behind this one."""
    arrays = state.rows
    for i in np.flatnonzero(arrays.is_prefilling[rows]).tolist():
        state.ledgers.chunk(requests[i], int(num_tokens[i]))
        arrays.set_prefilling(int(rows[i]), bool(is_unfinished[i]))


def _give_blocks(
    state: SchedulerState, plan: PlanBuilder, rows: RowIndexes, num_blocks: Int32s, has_drafts: Bools | None
) -> None:
    """has_drafts: [m], whether a row wants them for drafts, too."""
    block_ids = state.pool.allocate(int(np.add.reduce(num_blocks)))
    at = 0
    for request, count in zip(state.rows.of(rows), num_blocks.tolist(), strict=True):
        request.block_ids += block_ids[at : at + count]
        at += count
    arrays = state.rows
    arrays.num_places[rows] += num_blocks * state.limits.block_size
    state.leaks.grow(block_ids, arrays.run[rows], num_blocks, has_drafts, state.steps.num_planned)
    plan.append_blocks(rows, num_blocks, block_ids)


def _note_full_blocks(state: SchedulerState) -> None:
    """Of all rows that have filled a block since the last plan: they are to be made findable."""
    if not state.limits.prefix_caching:
        return
    arrays = state.rows
    rows = arrays.in_order()
    fields = arrays.table[PLAN_FIELDS].take(rows, axis=1)
    num_ready, next_full = np.minimum(fields[0], fields[4]), fields[2]
    is_new = (num_ready >= next_full).nonzero()[0]
    if not len(is_new):
        return
    rows, size = rows[is_new], state.limits.block_size
    firsts, ends = next_full[is_new] // size - 1, num_ready[is_new] // size
    arrays.next_full[rows] = (ends + 1) * size
    state.full_blocks.extend(zip(arrays.of(rows), firsts.tolist(), ends.tolist(), strict=True))
