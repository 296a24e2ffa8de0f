"""The counter that compiled kernels take times with, against this machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from ..kernels.cpu.compiled import compiled
from ..kernels.cpu.words import clock

_clock = cast("Callable[[], int]", clock)
"""As compiled code calls it."""


@compiled
def _read_counter() -> int:
    return _clock()


class ProcessorClock:
    """Counts from when it is made; the longer, the better it knows how long a unit is."""

    def __init__(self) -> None:
        _read_counter()  # the first call compiles it
        self._begin = self._now()

    def seconds_per_unit(self) -> float:
        """Mean over the time since then."""
        count, seconds = self._now()
        return (seconds - self._begin[1]) / (count - self._begin[0])

    def _now(self) -> tuple[int, float]:
        return _read_counter(), time.perf_counter()
