"""The arguments of a compiled proposer: arrays that stay where they are, so that they are packed once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..kernels.cpu.packed_arguments import Packed
from .proposer import Int32s, ProposedDrafts

MAX_DRAFTS = 256
"""Of a row in one step, whatever is asked for [tokens]."""


class Batch(NamedTuple):
    """The rows of one call, and what comes of them."""

    num_rows: npt.NDArray[np.int64]
    """[1]"""
    rows: Int32s
    """[max_num_seqs], as the three below; the first num_rows of each count."""
    lengths: Int32s
    """Known tokens."""
    max_drafts: Int32s
    counts: Int32s
    drafts: Int32s
    """[max_num_seqs * MAX_DRAFTS], filled from its start."""


class RowBuffers:
    """Of the rows that one call is about, at most `max_num_seqs`."""

    def __init__(self, max_num_seqs: int) -> None:
        rows, lengths, max_drafts, counts = (np.zeros(max_num_seqs, np.int32) for _ in range(4))
        drafts = np.zeros(max_num_seqs * MAX_DRAFTS, np.int32)
        self._batch = Batch(np.zeros(1, np.int64), rows, lengths, max_drafts, counts, drafts)
        self.packed = Packed(self._batch)
        self._token_ids: Int32s | None = None
        self._packed_token_ids = self.packed

    def fill(self, rows: Int32s, num_known: Int32s, max_drafts: Int32s) -> None:
        num_rows, batch = rows.size, self._batch
        batch.num_rows[0] = num_rows
        batch.rows[:num_rows] = rows
        num_known.take(rows, out=batch.lengths[:num_rows], mode="clip")  # the mode that needs no copy
        batch.max_drafts[:num_rows] = max_drafts

    def pack_token_ids(self, token_ids: Int32s) -> Packed:
        """The batch's own array is the same in every step."""
        if self._token_ids is not token_ids:
            self._token_ids, self._packed_token_ids = token_ids, Packed(token_ids)
        return self._packed_token_ids

    def drafts(self, num_drafts: int) -> ProposedDrafts:
        """Copies of what the compiled function has left."""
        batch = self._batch
        return ProposedDrafts(batch.counts[: batch.num_rows[0]].copy(), batch.drafts[:num_drafts].copy())
