"""The worker's own proposer beside the persistent batch: it is told which requests come and go.

A row under a grammar needs a mask for each position that it draws for, and masks are made from what is told with a
result. So the drafts of such a row are guessed when a step ends, as many as that step might have had, and told; the
next step verifies them. Those of other rows are guessed when the step begins that verifies them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..mailbox.messages.steps import StepPlan
from ..speculative.proposer import Int32s, ProposedDrafts, Proposer
from .input_batch import InputBatch


class _Ahead(NamedTuple):
    """Drafts that were guessed behind so many known tokens."""

    base: int
    token_ids: Int32s


class Drafter:
    """Follows the rows of a batch for a proposer, if there is one."""

    def __init__(self, batch: InputBatch, proposer: Proposer | None) -> None:
        self._batch, self._proposer = batch, proposer
        self._ahead: dict[int, _Ahead] = {}
        """Row under a grammar -> what was guessed for it."""
        self._room: dict[int, int] = {}
        """Rows under a grammar that this step might draft for, and how much."""

    @property
    def has_proposer(self) -> bool:
        """Rows go on where they stand, whatever plans count on."""
        return self._proposer is not None

    def apply(self, plan: StepPlan) -> None:
        """The batch has applied the plan."""
        if self._proposer is None:
            return
        self._room.clear()
        if plan.removed_rows:
            removed = np.frombuffer(plan.removed_rows, np.int32)
            self._proposer.forget(removed)
            for row in removed.tolist() if self._ahead else ():
                self._ahead.pop(row, None)
        for new in plan.new_rows:
            self._proposer.follow(new.row, len(new.token_ids) // 4, new.sharing_key or None)

    def propose(self, rows: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """The drafts of a step. rows, max_drafts: int32 [n]; each draft may be any guess, so fewer may be verified."""
        assert self._proposer is not None
        batch = self._batch
        if not batch.has_constrained_rows or not (is_ahead := batch.is_constrained[rows]).any():
            return self._proposer.propose(rows, batch.token_ids, batch.num_known, max_drafts)
        self._room.update(zip(rows[is_ahead].tolist(), max_drafts[is_ahead].tolist(), strict=True))
        parts = [self._guessed_ahead(row)[:most] for row, most in self._room.items()]
        found = ProposedDrafts(np.zeros(0, np.int32), np.zeros(0, np.int32))
        if not is_ahead.all():
            found = self._proposer.propose(rows[~is_ahead], batch.token_ids, batch.num_known, max_drafts[~is_ahead])
        counts = np.zeros(rows.size, np.int32)
        counts[~is_ahead], counts[is_ahead] = found.counts, [part.size for part in parts]
        token_ids = np.zeros(int(counts.sum()), np.int32)
        is_of_ahead = np.repeat(is_ahead, counts)
        token_ids[~is_of_ahead], token_ids[is_of_ahead] = found.token_ids, np.concatenate(parts)
        return ProposedDrafts(counts, token_ids)

    def guess_ahead(self) -> dict[str, bytes]:
        """For rows under a grammar, behind what the step has drawn: the fields of `StepResult` about next drafts. What
        was told once stays, as long as the row does."""
        known = self._batch.num_known
        rows = [row for row in self._room if row not in self._ahead or self._ahead[row].base != known[row]]
        if not rows or self._proposer is None:
            return {}
        asked, most = np.array(rows, np.int32), np.array([self._room[row] for row in rows], np.int32)
        found = self._proposer.propose(asked, self._batch.token_ids, known, most)
        for row, part in zip(rows, np.split(found.token_ids, np.cumsum(found.counts)[:-1]), strict=True):
            self._ahead[row] = _Ahead(int(known[row]), part)
        return {
            "next_draft_runs": self._batch.run[asked].tobytes(),
            "num_next_drafts": found.counts.tobytes(),
            "next_draft_ids": found.token_ids.tobytes(),
        }

    def clear(self) -> None:
        """All rows will be forgotten."""
        if self._proposer is not None:
            self._proposer.forget(np.flatnonzero(self._batch.is_used).astype(np.int32))
            self._ahead.clear()

    def _guessed_ahead(self, row: int) -> Int32s:
        ahead = self._ahead.get(row)
        if ahead is None or ahead.base != self._batch.num_known[row]:
            return np.zeros(0, np.int32)
        return ahead.token_ids
