"""Finds processes that live and do not move, from what they show on the progress page."""

from __future__ import annotations

from collections.abc import Callable

from ..shm_queue import START_PHASES, ProgressLine
from ..topology.schema import SupervisionSection


class _Unchanged:
    """For how long a value has been the same, by the watching clock."""

    def __init__(self) -> None:
        self._value: object = None
        self._since_ns = 0

    def for_ns(self, value: object, now_ns: int) -> int:
        if value != self._value:
            self._value, self._since_ns = value, now_ns
        return now_ns - self._since_ns


class Watchdog:
    """Asked every `interval_s`. Time in which the watching process did not run itself does not count: whoever was
    stopped together with it (a terminal's Ctrl-Z, a suspended machine) is not taken for hung."""

    def __init__(self, settings: SupervisionSection) -> None:
        self._step_deadline_s = settings.step_deadline_s
        self._actor_deadline_s = settings.actor_deadline_s
        self.interval_s = min(1.0, settings.step_deadline_s / 8, settings.actor_deadline_s / 8)
        self._states: dict[tuple[str, str], _Unchanged] = {}
        self._last_ns: int | None = None
        self._clock_ns = 0
        """Advances by at most two intervals a call."""

    def tick(self, now_ns: int) -> None:
        """Once before the actors of one round are checked. now_ns: CLOCK_MONOTONIC."""
        if self._last_ns is not None:
            self._clock_ns += min(now_ns - self._last_ns, int(2e9 * self.interval_s))
        self._last_ns = now_ns

    def check(self, actor: str, line: ProgressLine, has_unread_plan: Callable[[], bool] | None) -> str | None:
        """Why `actor` counts as hung, or None. `has_unread_plan`: of a worker, whether its call board has one."""
        if line.phase in START_PHASES or not line.heartbeat_ns:
            # Declared slow, or its process still starts other actors: that may take as long as it takes.
            self.forget(actor)
            return None
        still_s = self._still_s(actor, "loop", line.heartbeat_ns)
        if still_s > self._actor_deadline_s:
            return f"{actor}'s event loop has not turned for {still_s:.0f} s (actor_deadline_s)"
        if has_unread_plan is None:
            return None
        since_ns = line.stepping_since_ns
        still_s = self._still_s(actor, "step", since_ns)
        if since_ns and still_s > self._step_deadline_s:
            return f"{actor} has been in step {line.step} for {still_s:.0f} s (step_deadline_s)"
        unread = has_unread_plan()
        still_s = self._still_s(actor, "plan", (unread, line.time_ns))
        if unread and still_s > self._step_deadline_s:
            return f"{actor} has left a plan unread for {still_s:.0f} s (step_deadline_s)"
        return None

    def forget(self, actor: str) -> None:
        """Its next incarnation begins anew."""
        for what in ("loop", "step", "plan"):
            self._states.pop((actor, what), None)

    def _still_s(self, actor: str, what: str, value: object) -> float:
        state = self._states.setdefault((actor, what), _Unchanged())
        return state.for_ns(value, self._clock_ns) / 1e9
