"""How fast the queue drains, for Retry-After: integers only, so that a replay on any machine tells the same."""

from __future__ import annotations

NS_PER_S = 1_000_000_000
PERIOD_NS = 10 * NS_PER_S
MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 60


class DrainRate:
    """Requests that left the queue for good, and the time in which there was a queue, over the last 10 to 20 s of such
    time: what comes and goes in a quiet hour says nothing of how fast a queue drains.

    Two periods: one that is full, and the one that fills.
    """

    def __init__(self) -> None:
        self._now_ns = 0
        self._is_queue = False
        self._left = [0, 0]
        self._waited_ns = [0, 0]

    def advance(self, now_ns: int, is_queue: bool) -> None:
        """It is `now_ns`; `is_queue`: there has been a queue since the last call."""
        if is_queue:
            self._waited_ns[1] += max(0, now_ns - self._now_ns)
        self._now_ns, self._is_queue = now_ns, is_queue
        if self._waited_ns[1] >= PERIOD_NS:
            self._left = [self._left[1], 0]
            self._waited_ns = [self._waited_ns[1], 0]

    def leave(self) -> None:
        """A request was admitted for the first time, or ended before that; it counts if there was a queue."""
        self._left[1] += self._is_queue

    def retry_after_s(self, num_requests: int) -> int:
        """Seconds until so many requests more have left, at least 1 and at most 60; if none has left yet, one is
        taken to leave now. 5 requests in 10 s: 1 takes 2 s, 12 take 24 s."""
        wait_ns = num_requests * sum(self._waited_ns) // max(1, sum(self._left))
        return min(max(-(-wait_ns // NS_PER_S), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
