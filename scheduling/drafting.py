"""Guesses of a proposer at the next tokens of running requests."""

from __future__ import annotations

from ..mailbox.messages.drafts import Drafts
from .state import SchedulerState


def take_drafts(state: SchedulerState, event: Drafts) -> None:
    """Keep those that go on where a request stands now, as far as its length leaves room for them and one token more.

    A request that is on its way to its next token gets none: by the time they could be planned they would be late. Nor
    does one under a grammar: its worker has a mask for one position, and nobody has checked the guesses.
    """
    arrays = state.rows
    for run, position, token_ids in zip(event.runs, event.positions, event.token_ids, strict=True):
        request = state.running.get(run)
        if request is None or request.row is None or request.grammar_key:
            continue
        num_tokens = request.num_tokens
        if position != num_tokens or request.num_in_flight or request.num_uncomputed_tokens != 1:
            continue
        kept = token_ids[: request.max_total_tokens - num_tokens - 1]
        request.draft_token_ids = kept
        arrays.set_drafts(request.row, len(kept))
