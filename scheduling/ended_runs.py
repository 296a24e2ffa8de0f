"""How the runs that are over ended: the names that a leak is told with."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .request import RequestKey

MAX_RUNS = 16_384


class EndedRun(NamedTuple):
    """`how`: a finished state, or `preempted (cause)`, `waits for input`, `goes on without it`."""

    key: RequestKey
    how: str


class EndedRuns:
    """The last MAX_RUNS of them."""

    def __init__(self) -> None:
        self._runs: OrderedDict[int, EndedRun] = OrderedDict()

    def add(self, run: int, key: RequestKey, how: str) -> None:
        """`run` of the request is over; told again it counts as it was told last."""
        self._runs[run] = EndedRun(key, how)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def find(self, run: int) -> EndedRun | None:
        """None if it goes on, or ended too long ago."""
        return self._runs.get(run)
