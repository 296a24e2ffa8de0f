"""Many steps at once, while nothing happens but that each row decodes: the state that as many single steps leave.

Rows are *steady* when all plans in flight are of just these rows, nobody waits, and nothing is to be done for a token
but to append it. Then every step is known beforehand until the first of the rows is planned to its end, or blocks run
short: which row takes a block at which step, and which block is full behind which. What grows by one at each step is
moved in one go; blocks are taken, and made findable, one by one in the order of the steps.

That it is so is tested against single steps, attribute by attribute (tests/scheduling/test_steady_steps.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from .estimate import decayed
from .request import Request
from .row_arrays import ONE, STEADY_FIELDS, ZERO, Int32s, RowIndexes
from .running import rows_in_order
from .state import SchedulerState
from .wait_clock import WaitCause


class SteadyRows(NamedTuple):
    """All rows, n of them, in plan order."""

    rows: RowIndexes
    runs: bytes
    """int64 [n], as in a plan."""
    num_tokens: Int32s
    """[n]: known ones, the position of the token that comes next."""
    starts: Int32s
    """[n]: where the next plan begins."""
    num_places: Int32s
    """[n]: positions that its blocks hold."""
    max_steps: int
    """So many can be taken at once, at least 1."""
    block_size: int
    num_free_blocks: int


def find_steady(state: SchedulerState) -> SteadyRows | None:
    """The rows, if they are steady; None: the next step has to be taken singly."""
    arrays, limits = state.rows, state.limits
    if not state.running or not _is_quiet(state):
        return None
    runs = state.steps.runs_in_flight(limits.pipeline_depth)
    if runs is None or len(runs) != 8 * len(state.running) or len(state.running) > limits.max_num_batched_tokens:
        return None
    rows = rows_in_order(state)
    if runs != arrays.bytes_of(rows)[1]:
        return None
    fields = arrays.table[STEADY_FIELDS].take(rows, axis=1)
    starts, num_places, next_full, num_expected, num_tokens, max_total, _, is_watched = fields
    max_steps = int(np.minimum.reduce(max_total - num_expected))
    is_other = (num_expected != starts + ONE) | (is_watched != ZERO)
    if limits.prefix_caching:
        is_other |= next_full <= num_tokens
    if max_steps < 1 or np.count_nonzero(is_other):
        return None
    steady = SteadyRows(rows, runs, num_tokens, starts, num_places, max_steps, limits.block_size, state.pool.num_free)
    while max_steps and _num_blocks(steady, max_steps) > steady.num_free_blocks:
        max_steps //= 2
    return steady._replace(max_steps=max_steps) if max_steps else None


def take_steady_steps(
    state: SchedulerState, steady: SteadyRows, times_ns: Sequence[int], token_ids: Int32s, has_successor: bool
) -> list[int]:
    """As if `step` had been called at each of the k `times_ns`, with the result of the oldest step in flight.

    `steady`: as the state has it now; k is not above its `max_steps`. `token_ids`: [k, n], no row's own end ids among
    them; `has_successor`: another plan waited when each of the steps ended. Returns at which of the k steps each of the
    blocks was taken that were, in that order.
    """
    num_steps, num_rows = len(times_ns), len(steady.rows)
    state.now_ns = times_ns[-1]
    state.ledgers.advance(times_ns[0])
    state.ledgers.stop(WaitCause.BUDGET)
    state.ledgers.advance(times_ns[-1])
    state.drain_rate.advance(times_ns[-1], is_queue=False)
    _append(state, steady, token_ids)
    steps = _change_blocks(state, steady, num_steps)
    rows, arrays = steady.rows, state.rows
    arrays.num_computed[rows] += num_steps
    arrays.num_expected[rows] += num_steps
    state.steps.repeat(num_steps, arrays.num_changes, has_successor=has_successor)
    state.counters.generation_tokens += num_steps * num_rows
    state.counters.num_scheduled_tokens += num_steps * num_rows
    if state.limits.policy == "fair":
        state.tenants.charge_rows(np.repeat(arrays.tenant[rows], num_steps))
    state.estimate = decayed(state.estimate, num_steps)
    return steps


def _is_quiet(state: SchedulerState) -> bool:
    """Nothing is to be told, tried, loaded, guessed, ended in time, or admitted."""
    rows = state.rows
    return not (
        state.waiting
        or rows.num_prefilling
        or state.speculates
        or state.constrained
        or rows.has_removed
        or state.paused
        or state.deadlines
        or state.orphans
        or state.verdicts
        or state.is_fresh_due
        or state.trial.is_active
        or state.transfers.blocks()
    )


def _num_blocks(steady: SteadyRows, num_steps: int) -> int:
    """Blocks that so many steps take."""
    first = steady.num_places - steady.starts
    return int((np.maximum(num_steps - first + steady.block_size - 1, 0) // steady.block_size).sum())


def _append(state: SchedulerState, steady: SteadyRows, token_ids: Int32s) -> None:
    """k tokens for each row; a request takes over what stands before its last block border, if it has come to one."""
    arrays, rows, size = state.rows, steady.rows, steady.block_size
    num_steps = len(token_ids)
    assert not (arrays.end_ids[:, None, rows] == token_ids).any(), "a token ends a row"
    ends = steady.num_tokens + num_steps
    borders = ends - ends % size
    num_kept = (borders - steady.num_tokens).tolist()
    for i, request in enumerate(arrays.of(rows)):
        if num_kept[i] > 0:
            request.keep_tail()
            request.kept_token_ids.frombytes(token_ids[: num_kept[i], i].tobytes())
    last = np.arange(max(0, num_steps - size), num_steps, dtype=np.int32)[:, None]
    arrays.tail[rows, (steady.num_tokens + last) % size] = token_ids[last[:, 0]]
    arrays.num_tokens[rows] = ends
    arrays.tail_at[rows] = ends - borders


class _Change(NamedTuple):
    """A block changes: in the order of steps, and in a step first those that are taken."""

    step: int
    is_full: bool
    """Else a row takes one."""
    place: int
    """Of the row: in the plan, or, of one that is full, by run."""
    request: Request
    block_index: int
    """Of one that is full."""


def _change_blocks(state: SchedulerState, steady: SteadyRows, num_steps: int) -> list[int]:
    """Blocks are taken, and noted when they are full, which makes them findable in the next step, before it takes any.

    Returns at which of the steps each was taken.
    """
    rows, arrays, size = steady.rows, state.rows, steady.block_size
    changes = _changes(state, steady, num_steps)
    state.register_noted_blocks()
    places: list[int] = []
    steps: list[int] = []
    block_ids: list[int] = []
    for (step, is_full), together in groupby(changes, itemgetter(0, 1)):
        if is_full:
            full = [(change.request, change.block_index, change.block_index + 1) for change in together]
            state.full_blocks += full
            if step < num_steps - 1:
                state.register_noted_blocks()
        else:
            takers = list(together)
            taken = state.pool.allocate(len(takers))
            for change, block_id in zip(takers, taken, strict=True):
                change.request.block_ids.append(block_id)
                places.append(change.place)
            steps += [step] * len(taken)
            block_ids += taken
    if block_ids:
        indexes = np.array(places, np.intp)
        arrays.num_places[rows] += np.bincount(indexes, minlength=len(rows)).astype(np.int32) * size
        holders, ones = arrays.run[rows[indexes]], np.ones(len(places), np.int32)
        state.leaks.grow(block_ids, holders, ones, None, state.steps.num_planned + np.array(steps, np.int64))
    return steps


def _changes(state: SchedulerState, steady: SteadyRows, num_steps: int) -> list[_Change]:
    """All of them, in order; full blocks count as noted."""
    arrays, rows, size = state.rows, steady.rows, steady.block_size
    requests = arrays.of(rows)
    changes = []
    num_places = steady.num_places.tolist()
    for place, start in enumerate(steady.starts.tolist()):
        for step in range(num_places[place] - start, num_steps, size):
            changes.append(_Change(step, False, place, requests[place], 0))
    if state.limits.prefix_caching:
        next_full = arrays.next_full[rows].tolist()
        for place, num_tokens in enumerate(steady.num_tokens.tolist()):
            request = requests[place]
            for step in range(next_full[place] - num_tokens - 1, num_steps, size):
                assert request.run is not None and request.row is not None
                changes.append(_Change(step, True, request.run, request, (num_tokens + step) // size))
                arrays.next_full[request.row] += size
    changes.sort()
    return changes
