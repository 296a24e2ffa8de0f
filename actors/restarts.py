"""When a process that died may be started again, and after what wait."""

from __future__ import annotations

from collections import deque

from ..topology.schema import RestartPolicy

_MAX_BACKOFF_S = 30.0


class Restarts:
    """The deaths of one process within the window of its policy."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths_s: deque[float] = deque()

    def record_death(self, now_s: float) -> float | None:
        """Seconds to wait before the restart, or None if there were too many deaths. The first restart in a window
        comes at once, each further one waits twice as long as the one before."""
        policy = self._policy
        self._deaths_s.append(now_s)
        while self._deaths_s[0] < now_s - policy.within_s:
            self._deaths_s.popleft()
        num_deaths = len(self._deaths_s)
        if num_deaths > policy.max:
            return None
        if num_deaths == 1:
            return 0.0
        return min(policy.backoff_s * 2.0 ** min(num_deaths - 2, 30), _MAX_BACKOFF_S)

    def describe(self) -> str:
        """What was exceeded."""
        policy = self._policy
        return f"died {len(self._deaths_s)} times within {policy.within_s:g} s (restart.max = {policy.max})"
