"""The worker's own proposer beside the persistent batch: it is told which requests come and go.

A row under a grammar needs a mask for each position that it draws for, and masks are made from what is told with a
result. So the drafts of such a row are guessed when a step ends, as many as that step might have had, and told; the
next step verifies them. Those of other rows are guessed when the step begins that verifies them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..mailbox.messages.steps import StepPlan
from ..speculative.proposer import Float32s, Int32s, ProposedDrafts, Proposer
from .input_batch import InputBatch
from .prepare_inputs import StepInputs
from .sampler import Array


class _Ahead(NamedTuple):
    """Drafts that were guessed behind so many known tokens."""

    base: int
    token_ids: Int32s
    probs: Float32s | None


@runtime_checkable
class Observer(Protocol):
    """A proposer that guesses from the target's hidden states."""

    def observe(self, hidden: Array, inputs: StepInputs) -> None: ...


class Drafter:
    """Follows the rows of a batch for a proposer, if there is one."""

    def __init__(self, batch: InputBatch, proposer: Proposer | None, *, tells_drafts: bool = True) -> None:
        """tells_drafts: rows under a grammar have drafts, too."""
        self._batch, self.proposer = batch, proposer
        self.stays_without_masks = proposer is not None and tells_drafts
        """A row that finds no mask stays where it is: plans go on where it stands, whatever they count on."""
        made: object = proposer
        self._observer = made if isinstance(made, Observer) else None
        self._ahead: dict[int, _Ahead] = {}
        """Row under a grammar -> what was guessed for it."""
        self._room: dict[int, int] = {}
        """Rows under a grammar that this step might draft for, and how much."""
        self._last: ProposedDrafts | None = None
        """The drafts of this step."""

    @property
    def has_proposer(self) -> bool:
        """Somebody guesses."""
        return self.proposer is not None

    def apply(self, plan: StepPlan) -> None:
        """The batch has applied the plan."""
        if self.proposer is None:
            return
        self._room.clear()
        self._last = None
        if plan.removed_rows:
            removed = np.frombuffer(plan.removed_rows, np.int32)
            self.proposer.forget(removed)
            for row in removed.tolist() if self._ahead else ():
                self._ahead.pop(row, None)
        for new in plan.new_rows:
            self.proposer.follow(new.row, len(new.token_ids) // 4, new.sharing_key or None)

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """The drafts of a step, as `Proposer.propose`."""
        assert self.proposer is not None
        batch = self._batch
        if not batch.has_constrained_rows or not (is_ahead := batch.is_constrained[rows]).any():
            self._last = self.proposer.propose(rows, token_ids, num_known, max_drafts)
            return self._last
        self._room.update(zip(rows[is_ahead].tolist(), max_drafts[is_ahead].tolist(), strict=True))
        ahead = [self._guessed_ahead(row, most) for row, most in self._room.items()]
        found = ProposedDrafts(np.zeros(0, np.int32), np.zeros(0, np.int32))
        if not is_ahead.all():
            found = self.proposer.propose(rows[~is_ahead], batch.token_ids, batch.num_known, max_drafts[~is_ahead])
        self._last = _merged(is_ahead, ahead, found)
        return self._last

    def observe(self, hidden: Array, inputs: StepInputs) -> None:
        """A step was computed, and the batch knows what came of it; hidden: [t, hidden_size]."""
        if self._observer is not None:
            self._observer.observe(hidden, inputs)

    @property
    def probs(self) -> Float32s | None:
        """float32 [d, vocab]: what the d drafts of this step were drawn from; None: they were not."""
        return None if self._last is None else self._last.probs

    def guess_ahead(self) -> dict[str, bytes]:
        """For rows under a grammar, behind what the step has drawn: the fields of `StepResult` about next drafts. What
        was told once stays, as long as the row does."""
        known = self._batch.num_known
        rows = [row for row in self._room if row not in self._ahead or self._ahead[row].base != known[row]]
        if not rows or self.proposer is None:
            return {}
        asked, most = np.array(rows, np.int32), np.array([self._room[row] for row in rows], np.int32)
        found = self.proposer.propose(asked, self._batch.token_ids, known, most)
        ends = np.cumsum(found.counts)
        for row, count, end in zip(rows, found.counts.tolist(), ends.tolist(), strict=True):
            part = slice(end - count, end)
            probs = None if found.probs is None else found.probs[part]
            self._ahead[row] = _Ahead(int(known[row]), found.token_ids[part], probs)
        return {
            "next_draft_runs": self._batch.run[asked].tobytes(),
            "num_next_drafts": found.counts.tobytes(),
            "next_draft_ids": found.token_ids.tobytes(),
        }

    def clear(self) -> None:
        """All rows will be forgotten."""
        if self.proposer is not None:
            self.proposer.forget(np.flatnonzero(self._batch.is_used).astype(np.int32))
            self._ahead.clear()

    def _guessed_ahead(self, row: int, most: int) -> _Ahead:
        ahead = self._ahead.get(row)
        if ahead is None or ahead.base != self._batch.num_known[row]:
            return _Ahead(0, np.zeros(0, np.int32), None)
        return ahead._replace(
            token_ids=ahead.token_ids[:most], probs=None if ahead.probs is None else ahead.probs[:most]
        )


def _merged(is_ahead: NDArray[np.bool_], ahead: list[_Ahead], found: ProposedDrafts) -> ProposedDrafts:
    """The drafts of n rows in their order: of those that `is_ahead`, bool [n], names and of the others."""
    counts = np.zeros(is_ahead.size, np.int32)
    counts[~is_ahead], counts[is_ahead] = found.counts, [part.token_ids.size for part in ahead]
    is_of_ahead = np.repeat(is_ahead, counts)
    token_ids = np.zeros(is_of_ahead.size, np.int32)
    token_ids[~is_of_ahead], token_ids[is_of_ahead] = found.token_ids, np.concatenate([p.token_ids for p in ahead])
    of_ahead = [part.probs for part in ahead if part.probs is not None and part.token_ids.size]
    widths = {part.shape[1] for part in (found.probs, *of_ahead) if part is not None and part.size}
    if not widths:
        return ProposedDrafts(counts, token_ids)
    probs = np.zeros((is_of_ahead.size, widths.pop()), np.float32)
    if of_ahead:
        probs[is_of_ahead] = np.concatenate(of_ahead)
    if found.probs is not None and found.probs.size:
        probs[~is_of_ahead] = found.probs
    return ProposedDrafts(counts, token_ids, probs)
