"""What a step's result changes: tokens become known, some requests end.

Rows of which nothing but tokens is known go through numpy together; the others, and those that end, one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import ProtocolViolation
from ..mailbox.messages.requests import Finish
from ..mailbox.messages.steps import StepResult
from .gather import gather_prompt_logprobs
from .prompt_logprobs import GatheredLogprobs
from .request import Request
from .result_logprobs import ResultLogprobs
from .row_arrays import ONE, RESULT_FIELDS, Bools, Int32s, Int64s, RowIndexes
from .sessions import end_of_turn
from .state import SchedulerState
from .step_log import PlannedStep
from .stop import Ending, ending_of


def apply_result(state: SchedulerState, result: StepResult) -> None:
    """Append the tokens of the oldest step in flight to their requests and end those that are complete.

    Results of a run that is over (ended or preempted since the plan) are dropped. Raises ProtocolViolation if the
    result is not the oldest step's, its arrays do not match, or a token leaves a gap.
    """
    planned = state.steps.complete(result.step, result.num_plans_waiting > 0)
    if state.limits.has_constrained_drafts:
        state.constrained.note_drafts(_next_drafts(result))
    if result.prompt_logprobs is not None:
        gather_prompt_logprobs(state.running, result.step, result.prompt_logprobs)
    found = _find_tokens(state, planned, result)
    if state.limits.has_adaptive_drafts:
        _learn_time(state, planned, result)
        if found.num_drafts is None:
            state.draft_lengths.pass_by(found.rows)
    arrays, rows = state.rows, found.rows
    fields = arrays.table[RESULT_FIELDS].take(rows, axis=1)
    _check_positions(state, found, fields[0])
    is_watched = fields[3]
    if found.counts is None and found.num_drafts is None and not np.count_nonzero(is_watched):
        is_end = _append_plain(state, rows, fields, found.first_token_ids)
        if np.count_nonzero(is_end):
            for request in arrays.of(rows[is_end]):
                _end_if_complete(state, request)
        return
    if found.num_drafts is not None:
        _count_drafts(state, found)
        _settle_drafts(state, found)
    is_plain: Bools = is_watched == 0
    is_end = _append_plain_rows(state, found, fields, is_plain)
    logprobs = ResultLogprobs(result)
    for i in np.flatnonzero(is_end | ~is_plain).tolist():
        request = arrays.requests[rows[i]]
        assert request is not None
        if is_plain[i]:
            _end_if_complete(state, request)
        else:
            _append_each(state, request, found, i, logprobs)


class _Tokens(NamedTuple):
    """The tokens of a result whose runs are live: n rows, `counts[i]` tokens from `token_ids[firsts[i]]` on."""

    rows: RowIndexes
    positions: Int32s
    first_token_ids: Int32s
    firsts: Int32s | None
    """None: i."""
    counts: Int32s | None
    """None: one each."""
    num_drafts: Int32s | None
    """That were planned; None: no row had any."""
    num_drafted: Int32s | None
    """That were verified; None: those that were planned."""
    token_ids: Int32s
    """Those of runs that are over among them."""


def _find_tokens(state: SchedulerState, planned: PlannedStep, result: StepResult) -> _Tokens:
    runs = np.frombuffer(result.runs, np.int64)
    positions = np.frombuffer(result.positions, np.int32)
    token_ids = np.frombuffer(result.token_ids, np.int32)
    counts = np.frombuffer(result.num_sampled, dtype="<i4") if result.num_sampled else None
    num_tokens = len(runs) if counts is None else int(counts.sum())
    if (
        not len(runs) == len(positions)
        or num_tokens != len(token_ids)
        or (counts is not None and len(counts) != len(runs))
    ):
        raise ProtocolViolation(
            f"result of step {result.step} has {len(runs)} runs, {len(positions)} positions, {len(token_ids)} tokens"
        )
    num_drafted = np.frombuffer(result.num_drafted, "<i4") if result.num_drafted else None
    if num_drafted is not None and len(num_drafted) != len(runs):
        raise ProtocolViolation(f"result of step {result.step} has {len(runs)} runs, drafts of {len(num_drafted)}")
    rows, num_drafts = planned.yielding_rows, planned.num_drafts
    if result.runs != planned.yielding_runs:
        rows, num_drafts = _rows_of(planned, runs, result.step)
    if counts is not None and np.count_nonzero(counts < 1):
        is_given = _without_late(state, rows, runs, positions, counts, num_drafts, result.step)
        rows, runs, positions, counts = rows[is_given], runs[is_given], positions[is_given], counts[is_given]
        num_drafts = None if num_drafts is None else num_drafts[is_given]
        num_drafted = None if num_drafted is None else num_drafted[is_given]
    firsts = None if counts is None else (np.cumsum(counts) - counts).astype(np.int32)
    first_token_ids = token_ids if firsts is None else token_ids[firsts]
    found = _Tokens(rows, positions, first_token_ids, firsts, counts, num_drafts, num_drafted, token_ids)
    if planned.num_changes == state.rows.num_changes:
        return found
    is_live = state.rows.run[rows] == runs
    if np.count_nonzero(is_live) == len(rows):
        return found
    if firsts is None:
        firsts = np.arange(len(rows), dtype=np.int32)
    return _Tokens(
        rows[is_live],
        positions[is_live],
        first_token_ids[is_live],
        firsts[is_live],
        None if counts is None else counts[is_live],
        None if num_drafts is None else num_drafts[is_live],
        None if num_drafted is None else num_drafted[is_live],
        token_ids,
    )


def _without_late(
    state: SchedulerState,
    rows: RowIndexes,
    runs: Int64s,
    positions: Int32s,
    counts: Int32s,
    num_drafts: Int32s | None,
    step: int,
) -> Bools:
    """Constrained rows whose mask was late have no token: they are planned again from their last known one. What was
    planned on top of that step has no mask either, for nobody knows its tokens; or, if the worker guesses drafts for
    such rows, it goes on where this one began. Returns which rows have tokens.

    Raises ProtocolViolation for a row that has none and is not constrained.
    """
    arrays = state.rows
    for i in np.flatnonzero(counts < 1).tolist():
        row = rows[i]
        request = arrays.requests[row]
        if arrays.run[row] != runs[i] or request is None:
            continue
        if counts[i] < 0 or not request.grammar_key:
            raise ProtocolViolation(f"result of step {step} has a row with {counts[i]} tokens; each has one")
        if state.limits.has_constrained_drafts:
            if num_drafts is not None:
                arrays.settle_drafts(rows[i : i + 1], num_drafts[i : i + 1], np.zeros(1, np.int32))
            arrays.num_computed[row] -= ONE
            arrays.num_expected[row] -= ONE
            state.counters.num_late_masks += 1
        elif positions[i] == arrays.num_tokens[row]:
            arrays.num_computed[row] = arrays.num_tokens[row] - ONE
            arrays.num_expected[row] = arrays.num_tokens[row]
            state.counters.num_late_masks += 1
    is_given: Bools = counts > 0
    return is_given


def _next_drafts(result: StepResult) -> dict[int, list[int]]:
    """Run -> what the worker will guess. Raises ProtocolViolation if the arrays do not match."""
    runs, counts = np.frombuffer(result.next_draft_runs, np.int64), np.frombuffer(result.num_next_drafts, np.int32)
    token_ids = np.frombuffer(result.next_draft_ids, np.int32)
    if len(runs) != len(counts) or int(counts.sum()) != len(token_ids):
        raise ProtocolViolation(
            f"result of step {result.step} has drafts for {len(runs)} runs, {len(counts)} counts, {len(token_ids)} ids"
        )
    parts = np.split(token_ids, np.cumsum(counts)[:-1]) if len(runs) else []
    return {run: part.tolist() for run, part in zip(runs.tolist(), parts, strict=True)}


def _rows_of(planned: PlannedStep, runs: Int64s, step: int) -> tuple[RowIndexes, Int32s | None]:
    """The rows of a result that has not all of the plan's runs. Raises ProtocolViolation for one not planned."""
    index_of = {run: index for index, run in enumerate(np.frombuffer(planned.yielding_runs, "<i8").tolist())}
    unknown = [run for run in runs.tolist() if run not in index_of]
    if unknown or len(set(runs.tolist())) < len(runs):
        raise ProtocolViolation(f"result of step {step} has runs {runs.tolist()}, planned were {list(index_of)}")
    indexes = np.array([index_of[run] for run in runs.tolist()], np.int64)
    return planned.yielding_rows[indexes], None if planned.num_drafts is None else planned.num_drafts[indexes]


def _check_positions(state: SchedulerState, found: _Tokens, num_tokens: Int32s) -> None:
    is_wrong = found.positions != num_tokens
    if found.counts is not None:
        num_drafts = 0 if found.num_drafts is None else found.num_drafts
        if found.num_drafted is not None:
            is_wrong |= found.num_drafted > num_drafts
            num_drafts = found.num_drafted
        is_wrong |= found.counts > num_drafts + 1
    if np.count_nonzero(is_wrong):
        i = int(is_wrong.argmax())
        request = state.rows.requests[found.rows[i]]
        assert request is not None
        raise ProtocolViolation(
            f"request {request.key} run {request.run} got {1 if found.counts is None else found.counts[i]} tokens at "
            f"position {found.positions[i]}, {request.num_tokens} is next and {request.num_in_flight} are in flight"
        )


def _append_plain_rows(state: SchedulerState, found: _Tokens, fields: Int32s, is_plain: Bools) -> Bools:
    """All tokens of those of the n rows that are plain, up to one that ends its row; returns which end, [n]. fields:
    RESULT_FIELDS of all n."""
    rows, counts = found.rows, found.counts
    is_end = np.zeros(len(rows), np.bool_)
    is_end[is_plain] = _append_plain(state, rows[is_plain], fields[:, is_plain], found.first_token_ids[is_plain])
    if counts is None or found.firsts is None:
        return is_end
    place = 1
    goes_on = is_plain & ~is_end & (counts > place)
    while np.count_nonzero(goes_on):
        those, token_ids = rows[goes_on], found.token_ids[found.firsts[goes_on] + place]
        is_end[goes_on] = _append_plain(state, those, state.rows.table[RESULT_FIELDS].take(those, axis=1), token_ids)
        place += 1
        goes_on &= ~is_end & (counts > place)
    return is_end


def _append_plain(state: SchedulerState, rows: RowIndexes, fields: Int32s, token_ids: Int32s) -> Bools:
    """One token for each of `rows`, whose RESULT_FIELDS are `fields`; returns which of them end with it."""
    arrays = state.rows
    num_tokens, max_total, tail_at = fields[0] + ONE, fields[1], fields[2]
    arrays.tail[rows, tail_at] = token_ids
    tail_at = tail_at + ONE
    arrays.num_tokens[rows] = num_tokens
    state.counters.generation_tokens += len(rows)
    if state.limits.policy == "fair":
        state.tenants.charge_rows(arrays.tenant[rows])
    is_full = tail_at == arrays.tail_size
    if np.count_nonzero(is_full):
        tail_at[is_full] = 0
        _keep_full_blocks(state, rows[is_full])
    arrays.tail_at[rows] = tail_at
    is_end: Bools = num_tokens >= max_total
    is_end_id = fields[4:] == token_ids
    if np.count_nonzero(is_end_id):
        is_end |= is_end_id.any(axis=0)
    return is_end


def _keep_full_blocks(state: SchedulerState, rows: RowIndexes) -> None:
    """Their tails are full: the requests take them over."""
    num_bytes = 4 * state.limits.block_size
    blocks = state.rows.tail[rows].tobytes()
    for index, request in enumerate(state.rows.of(rows)):
        request.keep_block(blocks[index * num_bytes : (index + 1) * num_bytes])


def _learn_time(state: SchedulerState, planned: PlannedStep, result: StepResult) -> None:
    """Of a step that only decodes. It began when the one before it had ended, if that was later than its launch."""
    begin_ns, state.last_end_ns = max(result.start_ns, state.last_end_ns), result.end_ns
    if planned.num_tokens == len(planned.yielding_rows):
        num_drafted = int(np.add.reduce(np.frombuffer(result.num_drafted, "<i4"))) if result.num_drafted else 0
        state.draft_lengths.step_times.learn(planned.num_tokens + num_drafted, result.end_ns - begin_ns)


def _count_drafts(state: SchedulerState, found: _Tokens) -> None:
    """Of rows that may go on; some had drafts."""
    num_drafted = found.num_drafts if found.num_drafted is None else found.num_drafted
    assert num_drafted is not None
    num_accepted = np.zeros(len(found.rows), np.int32) if found.counts is None else found.counts - ONE
    state.counters.num_draft_tokens += int(np.add.reduce(num_drafted))
    state.counters.num_accepted_tokens += int(np.add.reduce(num_accepted))
    if found.num_drafted is not None:
        state.counters.num_scheduled_tokens += int(np.add.reduce(num_drafted))
        assert found.num_drafts is not None
        is_ahead = state.rows.is_constrained[found.rows]
        state.draft_lengths.learn(found.rows, found.num_drafts, num_drafted, num_accepted, is_ahead)
    state.ledgers.count_drafts(found.rows, num_drafted, num_accepted)


def _settle_drafts(state: SchedulerState, found: _Tokens) -> None:
    """Rows that might have drafts stand where their results say."""
    assert found.num_drafts is not None
    index = np.flatnonzero(found.num_drafts)
    num_accepted = np.zeros(len(index), np.int32) if found.counts is None else found.counts[index] - ONE
    state.rows.settle_drafts(found.rows[index], found.num_drafts[index], num_accepted)
    num_drafted = found.num_drafts if found.num_drafted is None else found.num_drafted
    for request, drafted, accepted in zip(
        state.rows.of(found.rows[index]), num_drafted[index].tolist(), num_accepted.tolist(), strict=True
    ):
        request.num_draft_tokens += drafted
        request.num_accepted_tokens += accepted


def _append_each(state: SchedulerState, request: Request, found: _Tokens, i: int, logprobs: ResultLogprobs) -> None:
    """The tokens of one row; those behind one that ends it are dropped."""
    first = i if found.firsts is None else int(found.firsts[i])
    count = 1 if found.counts is None else int(found.counts[i])
    assert request.row is not None
    request.num_deaths = 0
    state.trial.acquit(request.key)
    state.ledgers.token(request)
    if request.first_row_ns is not None:
        _count_first_token(state, request, request.first_row_ns)
    for index in range(first, first + count):
        token_id = int(found.token_ids[index])
        request.append(token_id)
        state.counters.generation_tokens += 1
        state.tenants.charge(request.tenant, 1)
        entry = logprobs.of_row(index, token_id, request)
        if request.logprobs is not None and entry is not None:
            request.logprobs.append(entry)
        gathered = request.prompt_logprobs
        state.outbox.add_token(request, entry, None if gathered is None else _take_prompt_logprobs(request, gathered))
        if _end_if_complete(state, request):
            return
    state.rows.is_watched[request.row] = request.needs_watch


def _end_if_complete(state: SchedulerState, request: Request) -> bool:
    """Its last token may end it, or the turn of a session."""
    ending = ending_of(request)
    if ending is not None:
        _end(state, request, ending)
    return ending is not None


def _end(state: SchedulerState, request: Request, ending: Ending) -> None:
    if request.is_open:
        end_of_turn(state, request, ending)
        return
    state.outbox.finish(request, Finish(ending.state.finish_reason, request.usage(), ending.stop_reason))
    state.end(request, ending.state)


def _take_prompt_logprobs(request: Request, gathered: GatheredLogprobs) -> GatheredLogprobs:
    """They leave with the first token of a request. Raises ProtocolViolation if some are missing."""
    if gathered.num_known != request.num_prompt_tokens - 1:
        raise ProtocolViolation(
            f"request {request.key} got a token and {gathered.num_known} of "
            f"{request.num_prompt_tokens - 1} prompt log-probabilities"
        )
    request.prompt_logprobs = None
    return gathered


def _count_first_token(state: SchedulerState, request: Request, first_row_ns: int) -> None:
    state.counters.num_prefilled += 1
    state.counters.prefill_time_ns += state.now_ns - first_row_ns
    request.first_row_ns = None
