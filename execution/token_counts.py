"""The distinct tokens of one row, and how often each stands in its output: what penalties need of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .input_batch import Int32s

Float32s = NDArray[np.float32]

_FEW = 16
"""Up to so many new tokens are added one by one; for more it is quicker to count all anew."""


class TokenCounts:
    """Grows with the output; a step's token costs no more than a move of the distinct ones."""

    __slots__ = ("_num_counted", "_prompt_ids", "counts", "token_ids")

    def __init__(self, prompt_ids: Int32s) -> None:
        """prompt_ids: tokens that are listed from the start, with a count of 0; they may repeat."""
        self._prompt_ids = np.unique(prompt_ids)
        self.token_ids: Int32s = self._prompt_ids
        """[m], ascending"""
        self.counts: Float32s = np.zeros(self.token_ids.size, np.float32)
        """[m]: times in the output"""
        self._num_counted = 0

    def count(self, output: Int32s) -> None:
        """Bring the counts up to `output`, all the row's output tokens; it may also have become shorter."""
        if 0 <= output.size - self._num_counted <= _FEW:
            for token_id in output[self._num_counted :]:
                self._add(token_id)
        else:
            self._count_all(output)
        self._num_counted = int(output.size)

    def with_more(self, more: Int32s) -> tuple[Int32s, Float32s]:
        """(token_ids, counts) as they would be with `more` behind the output; nothing changes."""
        distinct, times = np.unique(more, return_counts=True)
        token_ids = np.union1d(self.token_ids, distinct).astype(np.int32, copy=False)
        counts = np.zeros(token_ids.size, np.float32)
        counts[token_ids.searchsorted(self.token_ids)] = self.counts
        counts[token_ids.searchsorted(distinct)] += times
        return token_ids, counts

    def _add(self, token_id: np.int32) -> None:
        at = int(self.token_ids.searchsorted(token_id))
        if at < self.token_ids.size and self.token_ids[at] == token_id:
            self.counts[at] += 1
            return
        self.token_ids = np.concatenate((self.token_ids[:at], [token_id], self.token_ids[at:]), dtype=np.int32)
        self.counts = np.concatenate((self.counts[:at], [1], self.counts[at:]), dtype=np.float32)

    def _count_all(self, output: Int32s) -> None:
        distinct, times = np.unique(output, return_counts=True)
        self.token_ids = np.union1d(self._prompt_ids, distinct)
        self.counts = np.zeros(self.token_ids.size, np.float32)
        self.counts[self.token_ids.searchsorted(distinct)] = times
