"""Drafts by a second, smaller model with the same vocabulary: it goes on where a row stands, one token at a time.

It has keys and values of its own, in the blocks that the row has anyway: its tensors have as many blocks as those of
the target and are indexed by the same block tables. What it has computed of a row may lag behind, for it computes only
rows that it drafts for: before the first draft it catches up with what the row knows, in chunks, and gives no drafts
until it has. Of full blocks it remembers whose tokens they hold, so that it need not compute a prefix that is there.

Each draft is drawn with the row's own temperature and filters and with the noise of the place where it stands: a target
that agrees with the distribution then agrees with the draw, and a draft for `rejection` has the distribution that is
told with it.

Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", ICML 2023; Chen et al.,
"Accelerating large language model decoding with speculative sampling", 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..speculative.proposer import Float32s, Int32s, ProposedDrafts
from .draft_blocks import DraftBlocks
from .draft_chains import in_order
from .forward import Forward
from .input_batch import InputBatch
from .planned_rows import PlannedRows
from .prepare_inputs import StepInputs, flat_inputs
from .sampler import DraftSampler


class _Guessed(NamedTuple):
    """What was computed of a row behind its known tokens."""

    base: int
    token_ids: Int32s
    """At positions base and on."""


class DraftModelProposer:
    """Of the rows of one batch. Computes with the worker's thread, between its steps."""

    def __init__(
        self, forward: Forward, batch: InputBatch, *, num_blocks: int, max_chunk: int, draws: bool = False
    ) -> None:
        """num_blocks: of the pool; max_chunk: tokens that it catches up with in one call; draws: what drafts were drawn
        from is told."""
        self._forward, self._batch, self._max_chunk, self._draws = forward, batch, max_chunk, draws
        sampler = forward.make_sampler(batch)
        assert isinstance(sampler, DraftSampler), "one rank computes it"
        self._sampler: DraftSampler = sampler
        self._num_computed = np.zeros(batch.max_num_seqs, np.int32)
        """Positions of each row whose keys and values are those of its known tokens."""
        self._blocks = DraftBlocks(batch, num_blocks)
        self._guessed: dict[int, _Guessed] = {}

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        self._guessed.pop(row, None)
        self._num_computed[row] = self._blocks.enter(row, num_given_tokens)

    def forget(self, rows: Int32s) -> None:
        for row in rows.tolist():
            self._guessed.pop(row, None)

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """As `Proposer.propose`; behind what is known, drafts stand in token_ids from here on."""
        batch, known = self._batch, num_known[rows]
        num_places = np.minimum(batch.num_blocks[rows] * batch.block_size, batch.max_model_len)
        counts = np.clip(np.minimum(max_drafts, num_places - known + 1), 0, None).astype(np.int32)
        counts[known > num_places] = 0
        starts = np.array([self._stands_at(row) for row in rows.tolist()], np.int32)
        taken = np.where(counts > 0, self._chunks(known - starts), 0).astype(np.int32)
        counts[starts + taken < known] = 0
        drafts = np.zeros((rows.size, max(1, int(counts.max(initial=0)))), np.int32)
        probs: list[tuple[NDArray[np.intp], Float32s | None]] = []
        if taken.any():
            probs.append(self._compute(np.flatnonzero(taken), rows, starts, taken, counts, drafts[:, 0]))
            self._num_computed[rows] = starts + taken
            for row in rows[taken > 0].tolist():
                self._blocks.fill(row, int(self._num_computed[row]))
        for place in range(1, drafts.shape[1]):
            going = np.flatnonzero(counts > place)
            token_ids[rows[going], known[going] + place - 1] = drafts[going, place - 1]
            ones = np.ones(rows.size, np.int32)
            probs.append(self._compute(going, rows, known + place - 1, ones, counts, drafts[:, place]))
        for i in np.flatnonzero(counts > 1).tolist():
            self._guessed[int(rows[i])] = _Guessed(int(known[i]), drafts[i, : counts[i] - 1].copy())
        flat = drafts[np.arange(drafts.shape[1]) < counts[:, None]]
        return ProposedDrafts(counts, flat, in_order(probs, counts) if self._draws else None)

    def _stands_at(self, row: int) -> int:
        """Where it goes on: behind the drafts that were accepted, but the last known token is computed once more if it
        must be, for what comes behind it."""
        batch = self._batch
        guessed = self._guessed.pop(row, None)
        if guessed is not None:
            there = batch.token_ids[row, guessed.base : guessed.base + guessed.token_ids.size]
            is_other = np.flatnonzero(there != guessed.token_ids)
            num_right = int(is_other[0]) if is_other.size else guessed.token_ids.size
            self._num_computed[row] = min(guessed.base + num_right, int(batch.num_known[row]))
        return int(min(self._num_computed[row], batch.num_known[row] - 1))

    def _chunks(self, num_lacking: Int32s) -> Int32s:
        """int32 [n]: of what each lacks so much that it is not too much for all together, those in front first."""
        before = np.cumsum(num_lacking, dtype=np.int64) - num_lacking
        taken: Int32s = np.clip(self._max_chunk - before, 0, num_lacking).astype(np.int32)
        return taken

    def _compute(
        self,
        index: NDArray[np.intp],
        rows: Int32s,
        starts: Int32s,
        num_tokens: Int32s,
        counts: Int32s,
        drafts: Int32s,
    ) -> tuple[NDArray[np.intp], Float32s | None]:
        """Of the rows at `index` so many positions from `starts` on; each that may have drafts gets its next one, into
        `drafts`. Returns (which got one, what it was drawn from)."""
        chosen, firsts, widths = rows[index], starts[index], num_tokens[index]
        samples = counts[index] > 0
        planned = PlannedRows(chosen, self._batch.run[chosen], firsts, widths, firsts + widths, samples)
        inputs: StepInputs = flat_inputs(self._batch, planned)
        hidden = self._forward.hidden_states(inputs, self._batch)
        if not samples.any():
            return index[samples], None
        drawn, probs = self._sampler.draw(hidden, inputs, with_probs=self._draws)
        drafts[index[samples]] = drawn
        return index[samples], probs
