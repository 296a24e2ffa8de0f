"""The clock of causes: how long the line has stood still, by why, in the time of the scheduler's `now_ns`.

Everybody in line waits for the same reason: admission stopped. So the time is kept once and not for each request: the
sums of all causes together are the time, and who leaves the line takes the difference to what they were when it came.
A step costs the same whether nobody waits or thousands do.
"""

from __future__ import annotations

from enum import Enum


class WaitCause(Enum):
    """Why a request waits; the names are those of `WaitTime`. The first four are the line's, the others its own."""

    BUDGET = "budget"
    """The step's tokens were used up, or steps had to end before another could be planned."""
    SEQUENCES = "sequences"
    BLOCKS = "blocks"
    WORKER = "worker"
    GRAMMAR = "grammar"
    ADAPTER = "adapter"
    REMOTE_KV = "remote_kv"
    INPUT = "input"
    PRIORITY = "priority"
    """In line, and a request that came later has taken a place since; time without a worker does not count as such."""


LINE_CAUSES = (WaitCause.BUDGET, WaitCause.SEQUENCES, WaitCause.BLOCKS, WaitCause.WORKER)
"""In the order of the clock's sums."""


class WaitClock:
    """Sums of nanoseconds by line cause. Invariant: they grow together by exactly what `now_ns` grows."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.cause = WaitCause.WORKER
        """For which the line stands still now; none is attached at first."""
        self._sums = dict.fromkeys(LINE_CAUSES, 0)

    def advance(self, now_ns: int) -> None:
        """Time passed under the present cause. An earlier time than the last one is taken for it."""
        now_ns = max(now_ns, self.now_ns)
        self._sums[self.cause] += now_ns - self.now_ns
        self.now_ns = now_ns

    def sums(self, now_ns: int) -> tuple[int, ...]:
        """Nanoseconds under each of LINE_CAUSES up to `now_ns`, which is not before the clock's."""
        late_ns = now_ns - self.now_ns
        return tuple(ns + late_ns if cause is self.cause else ns for cause, ns in self._sums.items())
