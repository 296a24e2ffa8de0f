"""Guesses at the next tokens of running rows, in one of two ways.

A proposer that is an actor of its own sends its drafts here, for a row whose last token is known; such a row goes on
when the drafts in flight are judged. A proposer that is a guest of the worker guesses when the step begins, from tokens
that the scheduler may not know yet; here it is only decided how many drafts a row may have, so it can go on at any
depth: where it will stand is known within bounds, and the worker goes on where it stands.
"""

from __future__ import annotations

import numpy as np

from ..mailbox.messages.drafts import Drafts
from .plan_builder import Share
from .row_arrays import ONE, PLAN_FIELD, ZERO, Bools, Int32s, RowIndexes
from .state import SchedulerState


def take_drafts(state: SchedulerState, event: Drafts) -> None:
    """Keep those that go on where a request stands now, as far as its length leaves room for them and one token more.

    A request that is on its way to its next token gets none: by the time they could be planned they would be late. Nor
    does one under a grammar: its worker has a mask for one position, and nobody has checked the guesses. Nor does any
    if the worker guesses.
    """
    arrays = state.rows
    for run, position, token_ids in zip(event.runs, event.positions, event.token_ids, strict=True):
        request = state.running.get(run)
        if request is None or request.row is None or request.grammar_key or state.limits.max_drafts:
            continue
        num_tokens = request.num_tokens
        if position != num_tokens or request.num_in_flight or request.num_uncomputed_tokens != 1:
            continue
        kept = token_ids[: request.max_total_tokens - num_tokens - 1]
        request.draft_token_ids = kept
        arrays.set_drafts(request.row, len(kept))


def can_go_on(state: SchedulerState, rows: RowIndexes, fields: Int32s, *, drafts: bool) -> Bools:
    """Which of the rows need not wait for the results in flight; fields: their PLAN_FIELDS. Without room for drafts one
    waits that may need a block only because nobody knows where it stands."""
    arrays = state.rows
    ahead = arrays.num_ahead[rows]
    is_free: Bools = ahead == ZERO
    if not state.limits.max_drafts:
        num_expected, num_tokens = fields[PLAN_FIELD["num_expected"]], fields[PLAN_FIELD["num_tokens"]]
        is_free &= (arrays.num_drafts[rows] == ZERO) | (num_tokens == num_expected)
        return is_free
    if drafts:
        return np.ones(len(rows), np.bool_)
    num_computed, num_places = fields[PLAN_FIELD["num_computed"]], fields[PLAN_FIELD["num_places"]]
    max_total = fields[PLAN_FIELD["max_total"]]
    is_free |= np.minimum(num_computed + ahead + ONE, max_total - ONE) <= num_places
    return is_free


def drafts_wanted(state: SchedulerState, rows: RowIndexes, fields: Int32s) -> Int32s:
    """int32 [n]: how many drafts each row is to verify, if there is room; fields: as above."""
    arrays = state.rows
    if not state.limits.max_drafts:
        return arrays.num_drafts[rows]
    num_expected = fields[PLAN_FIELD["num_expected"]]
    room = fields[PLAN_FIELD["max_total"]] - num_expected - ONE  # behind the drafts comes one token more
    is_decode = num_expected - fields[PLAN_FIELD["num_computed"]] == ONE
    may_draft = is_decode
    if not state.limits.has_constrained_drafts:
        may_draft = is_decode & ~arrays.is_constrained[rows]
    num_tokens = int(np.add.reduce(num_expected - fields[PLAN_FIELD["num_computed"]]))
    num_tokens = min(num_tokens, state.limits.max_num_batched_tokens)
    return state.draft_lengths.wanted(rows, np.where(may_draft, room, ZERO), num_tokens)


def with_drafts(state: SchedulerState, share: Share, num_drafts: Int32s) -> Share:
    """`share` of a plan, whose rows verify so many drafts besides."""
    arrays, rows = state.rows, share.rows
    if not state.limits.max_drafts:
        drafts = [r.take_drafts(count) for r, count in zip(share.requests, num_drafts.tolist(), strict=True)]
        return share._replace(num_drafts=num_drafts, draft_ids=[token_id for part in drafts for token_id in part])
    is_open = arrays.num_ahead[rows] + num_drafts > ZERO
    if state.limits.has_constrained_drafts:
        # A step in flight may give it no token: then this one has to go on where that one began.
        is_open |= arrays.is_constrained[rows] & share.samples & (share.num_tokens == ONE)
    if not np.count_nonzero(is_open):
        return share
    ends = np.minimum(arrays.num_places[rows], arrays.max_total[rows] - ONE)
    return share._replace(num_drafts=num_drafts, draft_ends=np.where(is_open, ends, ZERO))


def drop_drafts(state: SchedulerState) -> None:
    """Nobody goes for the sake of guesses."""
    for request in state.rows.of(np.flatnonzero(state.rows.num_drafts)):
        request.take_drafts(0)
