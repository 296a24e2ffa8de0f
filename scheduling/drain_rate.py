"""How fast the queue drains, for Retry-After: integers only, so that a replay on any machine tells the same."""

from __future__ import annotations

NS_PER_S = 1_000_000_000
PERIOD_NS = 10 * NS_PER_S
MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 60


class DrainRate:
    """Requests that left the queue for good, and the time in which something waited, over the last 10 to 20 s of such
    time: a quiet hour, in which little leaves because little comes, does not count.

    Two periods: one that is full, and the one that fills.
    """

    def __init__(self) -> None:
        self._now_ns: int | None = None
        self._left = [0, 0]
        self._waited_ns = [0, 0]

    def advance(self, now_ns: int, has_waiting: bool) -> None:
        """It is `now_ns`; `has_waiting`: something waited since the last call."""
        if has_waiting and self._now_ns is not None:
            self._waited_ns[1] += max(0, now_ns - self._now_ns)
        self._now_ns = now_ns
        if self._waited_ns[1] >= PERIOD_NS:
            self._left = [self._left[1], 0]
            self._waited_ns = [self._waited_ns[1], 0]

    def leave(self) -> None:
        """A request left the queue: it was admitted for the first time, or ended in it."""
        self._left[1] += 1

    def retry_after_s(self, num_requests: int) -> int:
        """Seconds until so many requests more have left, at least 1 and at most 60; if none has left yet, one is
        taken to leave now. 5 requests in 10 s: 1 takes 2 s, 12 take 24 s."""
        wait_ns = num_requests * sum(self._waited_ns) // max(1, sum(self._left))
        return min(max(-(-wait_ns // NS_PER_S), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
