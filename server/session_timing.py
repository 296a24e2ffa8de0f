"""The times of a streaming session: each turn is measured and counted as a request of its own, which came with its
input, or, if that was there before, when the turn before it ended."""

from __future__ import annotations

import msgspec

from ..actors.frontend_api import Delta
from .metrics import ServerMetrics
from .request_timing import RequestTiming


class SessionTiming:
    """As `RequestTiming`, which the first turn brings with it."""

    def __init__(self, first: RequestTiming, metrics: ServerMetrics, max_tokens: int | None) -> None:
        self.arrival_ns = first.arrival_ns
        self._metrics = metrics
        self._max_tokens = max_tokens
        self._turn: RequestTiming | None = first
        """None: paused."""
        self._num_waiting = 0
        """Inputs that were given before the pause at which they go in."""

    def on_input(self) -> None:
        """The engine took an input now."""
        if self._turn is None:
            self._begin()
        else:
            self._num_waiting += 1

    def observe(self, delta: Delta) -> None:
        """A delta arrived now."""
        if self._turn is None:
            return  # the end of a session that was paused: its last turn was counted
        if delta.pause is None:
            self._turn.observe(delta)
            return
        self._turn.observe(msgspec.structs.replace(delta, finish=delta.pause, pause=None))
        self._turn = None
        if self._num_waiting:
            self._num_waiting -= 1
            self._begin()

    def end(self, reason: str) -> None:
        """The session ended for `reason`; later calls change nothing."""
        if self._turn is not None:
            self._turn.end(reason)

    def client_gone(self, *, is_stalled: bool) -> None:
        """The client did not take all; `is_stalled`: it was waited for."""
        if self._turn is not None:
            self._turn.client_gone(is_stalled=is_stalled)

    def refused(self) -> None:
        """The engine did not take the request: it is counted nowhere."""
        if self._turn is not None:
            self._turn.refused()

    def _begin(self) -> None:
        self._turn = RequestTiming(self._metrics)
        self._turn.expect(1, max_tokens=self._max_tokens)
