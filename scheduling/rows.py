"""Rows of the worker's persistent batch: which are free, and which the worker must clear."""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class RowSlots:
    """Rows 0 .. max_num_seqs - 1; the lowest free one is taken, so that a small batch stays dense."""

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._free = list(range(max_num_seqs))
        self._removed: list[int] = []

    @property
    def num_free(self) -> int:
        """Rows that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free row."""
        return heappop(self._free)

    def give_back(self, row: int) -> None:
        """Free `row`; the next plan tells the worker, before it may place another request there."""
        heappush(self._free, row)
        self._removed.append(row)

    def drain_removed(self) -> list[int]:
        """Rows freed since the last plan, in that order; each at most once."""
        removed, self._removed = self._removed, []
        return removed

    def forget_removed(self) -> None:
        """The worker is gone and its rows with it: there is nobody to tell."""
        self._removed = []

    def check_integrity(self, used: list[int]) -> None:
        """Assert that free and used rows are all the rows, each once."""
        rows = sorted([*self._free, *used])
        assert rows == list(range(self._max_num_seqs)), f"rows are {rows}, not 0..{self._max_num_seqs - 1}"
        assert len(set(self._removed)) == len(self._removed), f"a row is removed twice: {self._removed}"
        heap = list(self._free)
        heapify(heap)
        assert heap[:1] == self._free[:1], "the free rows are no heap"
