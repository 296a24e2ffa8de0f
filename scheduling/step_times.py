"""How long a step takes by the number of tokens in it, from the steps that were."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]

MAX_TOKENS = 2048
"""Steps with more are not learned from, unless it is said otherwise."""
_NEWEST = 0.1
"""Share of the newest step in what is known of its size, once there were ten."""
_MOST_NEWS = 1.5
"""So many times what is known, or its inverse, a step counts as at most: it may have waited for something else."""
_EXPLORED = 1.5
"""Sizes up to so many times the largest known are tried."""


class StepTimes:
    """Of steps that only decode. Between known sizes times are interpolated, and they never fall with size."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        """max_tokens: largest step that is learned from; 0: none is."""
        self._ns: Float64s = np.zeros(max_tokens + 1, np.float64)
        """[max_tokens + 1]: mean time of a step of so many tokens; 0: never seen."""
        self._num_seen = np.zeros(max_tokens + 1, np.int64)

    def learn(self, num_tokens: int, duration_ns: int) -> None:
        """A step of so many tokens took so long."""
        if not 0 < num_tokens < self._ns.size or duration_ns <= 0:
            return
        known, news = float(self._ns[num_tokens]), float(duration_ns)
        expected = known or self._expected(num_tokens)
        if expected:
            news = min(max(news, expected / _MOST_NEWS), expected * _MOST_NEWS)
        self._num_seen[num_tokens] += 1
        self._ns[num_tokens] += (news - known) * max(_NEWEST, 1.0 / int(self._num_seen[num_tokens]))

    def _expected(self, num_tokens: int) -> float:
        """Of a size that was never seen; 0: nothing is known."""
        found = self.curve(num_tokens, num_tokens)
        return float(found[0]) if found.size else 0.0

    def curve(self, first: int, last: int) -> Float64s:
        """[m], m <= last - first + 1: time of steps of first, first + 1, ... tokens, as far as sizes are known or worth
        a try, in any unit; empty if nothing is known."""
        sizes = np.flatnonzero(self._ns)
        if not sizes.size:
            return np.zeros(0)
        largest = int(sizes[-1])
        if first <= largest:
            last = min(last, max(largest + 1, int(_EXPLORED * largest)))
        times = np.maximum.accumulate(self._ns[sizes])
        wanted = np.arange(first, last + 1)
        found = np.interp(wanted, sizes, times)
        beyond = wanted > largest
        if beyond.any() and sizes.size > 1:
            half = int(np.searchsorted(sizes, largest // 2))
            half = min(half, sizes.size - 2)
            slope = (times[-1] - times[half]) / (largest - int(sizes[half]))
            found[beyond] += slope * (wanted[beyond] - largest)
        return found
