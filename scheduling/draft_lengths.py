"""How many drafts each row is to verify: as many as give the most tokens in the time.

Two things are learned from results. How long a step takes (`step_times`), and how often the draft in each place of a
row is accepted if those before it were: of the row itself, leaning on that of all rows while little is known of it. So
the worth of each draft is known, the chance that it and all before it are accepted; the best are taken, one after the
other, while tokens a second grow. Where verification is free all are taken; where each token costs its time none is
that is not nearly sure. What is known fades as more is learned, and a row that was given up is tried again now and
then, with one draft.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .limits import SchedulerLimits
from .row_arrays import ONE, Bools, Int32s, RowIndexes
from .step_times import MAX_TOKENS, Float64s, StepTimes

_PRIOR = 0.7
"""Chance of a draft of which nothing is known: high enough to be tried."""
_LEANING = 2.0
"""Of a row's first drafts so many count as much as what is known of all rows."""
_ROW_FADES, _ALL_FADES = 0.95, 0.995
"""What a step with drafts leaves of what was known."""
_TRIED_AGAIN = 64
"""Steps without a draft after which a row may have one."""
_LEAST_USE = 0.05
"""Share of the drafts that it may have which a row is taken to use, at least."""


class DraftLengths:
    """Of rows whose drafts the worker guesses."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._max_drafts, self._is_adaptive = limits.max_drafts, limits.has_adaptive_drafts
        num_rows, width = limits.max_num_seqs if self._is_adaptive else 0, max(1, self._max_drafts)
        self._tried: Float64s = np.zeros((num_rows, width), np.float64)
        """[max_num_seqs, max_drafts]: drafts in each place all before which were accepted, fading."""
        self._accepted: Float64s = np.zeros((num_rows, width), np.float64)
        """[max_num_seqs, max_drafts]: of them, those that were accepted."""
        self._used: Float64s = np.ones(num_rows, np.float64)
        """[max_num_seqs]: share of the drafts that a row might have which its proposer found, fading."""
        self._steps_without = np.zeros(num_rows, np.int64)
        """[max_num_seqs]: steps since the row was last tried."""
        self._all_tried: Float64s = np.zeros(width, np.float64)
        self._all_accepted: Float64s = np.zeros(width, np.float64)
        """[max_drafts] each: of all rows."""
        most = min(MAX_TOKENS, limits.max_num_batched_tokens)
        self.step_times = StepTimes(most if self._is_adaptive else 0)

    def enter(self, row: int) -> None:
        """Another request has taken the row."""
        if self._is_adaptive:
            self._tried[row], self._accepted[row], self._used[row] = 0.0, 0.0, 1.0
            self._steps_without[row] = 0

    def wanted(self, rows: RowIndexes, room: Int32s, num_tokens: int) -> Int32s:
        """int32 [n]: drafts for each of `rows`, at most `room`, int32 [n]; num_tokens: what the step has besides."""
        most = np.minimum(room, np.int32(self._max_drafts))
        num_most = int(np.add.reduce(most))
        if not self._is_adaptive or not num_most:
            return most
        times = self.step_times.curve(num_tokens, num_tokens + num_most)
        if times.size < 2:
            return np.minimum(most, ONE)
        worth = self._worth(rows)
        worth[np.arange(self._max_drafts) >= most[:, None]] = 0.0
        order = np.argsort(-worth, axis=None, kind="stable")[:num_most]
        use = np.maximum(self._used[rows], _LEAST_USE)[order // self._max_drafts]
        gains = np.cumsum(use * worth.reshape(-1)[order])
        sizes = np.cumsum(use)
        is_known = sizes <= times.size - 1
        costs = np.interp(sizes[is_known], np.arange(times.size), times)
        rates = (len(rows) + gains[is_known]) / costs
        best = len(rows) / times[0]
        again = np.minimum(most, (self._steps_without[rows] >= _TRIED_AGAIN).astype(np.int32))
        if not rates.size or rates.max() <= best:
            return again
        taken = order[: int(rates.argmax()) + 1]
        return np.maximum(again, np.bincount(taken // self._max_drafts, minlength=len(rows)).astype(np.int32))

    def learn(
        self, rows: RowIndexes, num_allowed: Int32s, num_drafted: Int32s, num_accepted: Int32s, is_ahead: Bools
    ) -> None:
        """What a result says of n different rows, int32 [n] each. is_ahead: bool [n], those whose drafts are guessed in
        the step before, where it might have had any: one that had none of those that it might have was not tried."""
        if not self._is_adaptive:
            return
        places = np.arange(self._max_drafts)
        tried = (places < num_drafted[:, None]) & (places <= num_accepted[:, None])
        accepted = places < num_accepted[:, None]
        has_news = num_drafted > 0
        fades = np.where(has_news, _ROW_FADES, 1.0)[:, None]
        self._tried[rows] = self._tried[rows] * fades + tried
        self._accepted[rows] = self._accepted[rows] * fades + accepted
        all_fades = _ALL_FADES if has_news.any() else 1.0
        self._all_tried = self._all_tried * all_fades + tried.sum(axis=0)
        self._all_accepted = self._all_accepted * all_fades + accepted.sum(axis=0)
        was_allowed = num_allowed > 0
        was_tried = was_allowed & ((num_drafted > 0) | ~is_ahead)
        self._steps_without[rows] = np.where(was_tried, 0, self._steps_without[rows] + 1)
        share = num_drafted[was_allowed] / num_allowed[was_allowed]
        self._used[rows[was_allowed]] += (1.0 - _ROW_FADES) * (share - self._used[rows[was_allowed]])

    def pass_by(self, rows: RowIndexes) -> None:
        """A step in which none of the rows might have a draft."""
        self._steps_without[rows] += 1

    def _worth(self, rows: RowIndexes) -> npt.NDArray[np.float64]:
        """[n, max_drafts]: chance that the draft in each place, and all before it, is accepted."""
        of_all = (self._all_accepted + _PRIOR) / (self._all_tried + 1.0)
        chances = (self._accepted[rows] + _LEANING * of_all) / (self._tried[rows] + _LEANING)
        return np.cumprod(chances, axis=1, dtype=np.float64)
