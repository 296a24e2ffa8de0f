"""Drafts of the running rows and how many of them were accepted, counted for all rows of a result at once."""

from __future__ import annotations

import numpy as np

from .row_arrays import Int32s, RowIndexes

NUM_PLACES = 16
"""That are told one by one."""


class DraftCounts:
    """Two counters a row of the batch. A row's are taken when its request leaves it."""

    def __init__(self, max_num_seqs: int) -> None:
        self._drafts = np.zeros(max_num_seqs, np.int64)
        self._accepted = np.zeros(max_num_seqs, np.int64)
        self.num_drafts = 0
        """Times that a row had drafts."""
        self.accepted_at = np.zeros(NUM_PLACES, np.int64)
        """[NUM_PLACES]: drafts that were accepted, by their place behind the last token; of all rows."""

    def add(self, rows: RowIndexes, num_drafts: Int32s, num_accepted: Int32s) -> None:
        """int32 [n] each, of different rows: a result tells how many drafts of each row were accepted."""
        self._drafts[rows] += num_drafts
        self._accepted[rows] += num_accepted
        self.num_drafts += int(np.count_nonzero(num_drafts))
        self.accepted_at += (np.arange(NUM_PLACES) < num_accepted[:, None]).sum(axis=0)

    def of_row(self, row: int) -> tuple[int, int]:
        """(drafts, accepted) since the row was taken."""
        return int(self._drafts[row]), int(self._accepted[row])

    def take(self, row: int) -> tuple[int, int]:
        """As `of_row`; the row counts from zero again."""
        counts = self.of_row(row)
        self._drafts[row] = self._accepted[row] = 0
        return counts
