"""Who took each unit of a pool (KV blocks, rows of the batch), at which step, and by which event.

It is written when units change hands and read only when some of them have leaked. An allocation costs two stores into
arrays, however many units it takes. A unit that several hold at once, a block of a shared prefix, has its further
holders beside them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Units = Sequence[int] | npt.NDArray[np.int32]
"""Block or row numbers [n]."""
_NOBODY = np.iinfo(np.int64).min
"""The run that holds a unit which was never taken."""
_MAX_PAST = 8
"""Holders of a shared unit that have given it back and are still remembered."""


class HoldingEvent(IntEnum):
    """By what a unit was taken."""

    ADMISSION = 0
    GROWTH = 1
    """A running request needed more blocks."""
    DRAFTS = 2
    """Blocks for tokens that may be rejected."""
    TRANSFER = 3
    """For keys and values that come from elsewhere."""
    SHARED_PREFIX = 4
    """Found in the prefix cache."""


class Holding(NamedTuple):
    """`run` took a unit."""

    run: int
    step: int
    event: HoldingEvent
    is_given_back: bool


class Holdings:
    """One array entry a unit. A run that takes a unit is its first holder if all before it gave it back."""

    def __init__(self, num_units: int) -> None:
        self._runs = np.full(num_units, _NOBODY, np.int64)
        self._marks = np.ones(num_units, np.int64)
        """step * 16 + event * 2 + is_given_back"""
        self._shared: dict[int, list[Holding]] = {}
        """Unit -> its further holders; when somebody else becomes the first holder, all of them have given it back."""

    def take(
        self,
        units: Units,
        runs: int | npt.NDArray[np.int64],
        step: int | npt.NDArray[np.int64],
        events: HoldingEvent | npt.NDArray[np.int64],
    ) -> None:
        """Free units are taken, by one run, at one step and by one event, or by one each."""
        indexes = np.asarray(units, np.intp)  # numpy's own type of an index: others would be converted twice
        self._runs[indexes] = runs
        self._marks[indexes] = step << 4 | events << 1

    def share(self, units: Sequence[int], run: int, step: int) -> None:
        """A run holds units that it found in the prefix cache, with others or alone."""
        for unit in units:
            further = self._shared.get(unit, [])
            holding = [each for each in further if not each.is_given_back]
            if not holding and self._marks[unit] & 1:
                self.take([unit], run, step, HoldingEvent.SHARED_PREFIX)
                continue
            past = [each for each in further if each.is_given_back]
            new = Holding(run, step, HoldingEvent.SHARED_PREFIX, False)
            self._shared[unit] = [*past[-_MAX_PAST:], *holding, new]

    def give_back(self, units: Units, run: int) -> None:
        """`run` holds these units no more."""
        held = np.asarray(units, np.intp)
        self._marks[held[self._runs[held] == run]] |= 1
        for unit in held.tolist() if self._shared else ():
            if further := self._shared.get(unit):
                self._shared[unit] = [h._replace(is_given_back=True) if h.run == run else h for h in further]

    def lost_by(self, unit: int, owners: Collection[int], num_lost: int) -> list[Holding]:
        """Who holds `unit` without having it in its table any more, `num_lost` times; fewer if they are not known.

        `owners`: runs that do have it. First those that never gave it back, the latest before others.
        """
        holdings = [self._first(unit), *self._shared.get(unit, ())]
        lost = [holding for holding in holdings if holding.run not in owners and holding.run != _NOBODY]
        lost.sort(key=lambda holding: (holding.is_given_back, -holding.step))
        return lost[:num_lost]

    def _first(self, unit: int) -> Holding:
        mark = int(self._marks[unit])
        return Holding(int(self._runs[unit]), mark >> 4, HoldingEvent(mark >> 1 & 7), bool(mark & 1))
