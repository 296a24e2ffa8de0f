"""The arguments of a compiled proposer: arrays that stay where they are, so that they are packed once."""

from __future__ import annotations

import numpy as np

from ..kernels.cpu.packed_arguments import Packed
from .proposer import Int32s, ProposedDrafts


class RowBuffers:
    """Of the rows that one call is about, at most `max_num_seqs`."""

    def __init__(self, max_num_seqs: int) -> None:
        self.rows, self.lengths, self.max_drafts, self.counts = (np.zeros(max_num_seqs, np.int32) for _ in range(4))
        self.packed_rows, self.packed_lengths = Packed(self.rows), Packed(self.lengths)
        self.packed_max_drafts, self.packed_counts = Packed(self.max_drafts), Packed(self.counts)
        self._drafts = np.empty(0, np.int32)
        self.packed_drafts = Packed(np.empty(1, np.int32))
        self._token_ids: Int32s | None = None
        self._packed_token_ids = self.packed_drafts

    def fill(self, rows: Int32s, num_known: Int32s, max_drafts: Int32s) -> int:
        """Returns the number of rows."""
        num_rows = rows.size
        self.rows[:num_rows] = rows
        num_known.take(rows, out=self.lengths[:num_rows], mode="clip")
        self.max_drafts[:num_rows] = max_drafts
        num_drafts = int(max_drafts.sum())
        if num_drafts > self._drafts.size:
            self._drafts = np.empty(2 * num_drafts, np.int32)
            self.packed_drafts = Packed(self._drafts)
        return num_rows

    def pack_token_ids(self, token_ids: Int32s) -> Packed:
        """The batch's own array is the same in every step."""
        if self._token_ids is not token_ids:
            self._token_ids, self._packed_token_ids = token_ids, Packed(token_ids)
        return self._packed_token_ids

    def drafts(self, num_rows: int, num_drafts: int) -> ProposedDrafts:
        """Copies of what the compiled function has left."""
        return ProposedDrafts(self.counts[:num_rows].copy(), self._drafts[:num_drafts].copy())
