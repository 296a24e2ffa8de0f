"""What the grammar actor tells on its progress line."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

_NUM_KEPT = 2048
"""Masks whose times are kept for the percentiles, which are renewed when an eighth of them has come."""


class GrammarStatistics(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counters since the start of this life; the field order is the word order on the progress page."""

    num_masks: int = 0
    mask_time_ns: int = 0
    """Sum over all masks: tokens taken, mask made and written."""
    mask_p50_ns: int = 0
    """Of the last masks."""
    mask_p99_ns: int = 0
    num_compiled: int = 0
    num_refused: int = 0
    """Grammars that cannot be compiled."""
    num_failed: int = 0
    """Requests whose grammar became too large to follow."""


class GrammarTimes:
    """The numbers as they grow."""

    def __init__(self) -> None:
        self.num_compiled = self.num_refused = self.num_failed = 0
        self._num_masks = self._time_ns = 0
        self._last: deque[int] = deque(maxlen=_NUM_KEPT)
        self._p50_ns = self._p99_ns = 0

    def mask(self, time_ns: int) -> None:
        """One mask took so long."""
        self._num_masks += 1
        self._time_ns += time_ns
        self._last.append(time_ns)
        if self._num_masks % (_NUM_KEPT // 8) == 1:
            self._p50_ns, self._p99_ns = (int(ns) for ns in np.percentile(self._last, (50, 99)))

    def statistics(self) -> GrammarStatistics:
        return GrammarStatistics(
            self._num_masks,
            self._time_ns,
            self._p50_ns,
            self._p99_ns,
            self.num_compiled,
            self.num_refused,
            self.num_failed,
        )
