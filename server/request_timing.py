"""The times of one request, taken as its deltas arrive in the server; for streams and whole answers alike."""

from __future__ import annotations

import time

from ..actors.frontend_api import Delta
from .metrics import ServerMetrics


class RequestTiming:
    """Observes one request. `end` counts it once, by how it ended."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._arrival_s = time.monotonic()
        self._last_token_s: float | None = None
        self._has_ended = False

    def observe(self, delta: Delta) -> None:
        """A delta arrived now."""
        now_s = time.monotonic()
        num_tokens = len(delta.token_ids)
        if num_tokens:
            if self._last_token_s is None:
                self._metrics.time_to_first_token.observe(now_s - self._arrival_s)
                if num_tokens > 1:
                    self._metrics.inter_token_latency.observe(0.0, num_tokens - 1)
            else:
                self._metrics.inter_token_latency.observe((now_s - self._last_token_s) / num_tokens, num_tokens)
            self._last_token_s = now_s
        if delta.finish is not None and not self._has_ended:
            self._metrics.e2e_request_latency.observe(now_s - self._arrival_s)
            self.end(delta.finish.reason)

    def end(self, reason: str) -> None:
        """The request ended for `reason`; later calls change nothing."""
        if not self._has_ended:
            self._has_ended = True
            self._metrics.count_finished(reason)

    def refused(self) -> None:
        """The engine did not take the request: it is counted nowhere."""
        self._has_ended = True
