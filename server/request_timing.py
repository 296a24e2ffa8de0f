"""The times of one request, taken as its deltas arrive in the server; for streams and whole answers alike.

An HTTP request is one request here, whatever its `n` and however many prompts it has: it has one first token, that of
whichever choice was first, and it ends with the last of its choices.
"""

from __future__ import annotations

import time

from ..actors.frontend_api import Delta
from .metrics import ServerMetrics


class RequestTiming:
    """Observes one request. `end` counts it once, by how it, or the last of its choices, ended."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._arrival_s = time.monotonic()
        self._last_token_s: dict[int, float] = {}
        """By choice."""
        self._num_choices_left = 1
        self._has_ended = False

    def expect(self, num_choices: int) -> None:
        """The request ends with the last of so many choices; called before the first delta."""
        self._num_choices_left = num_choices

    def observe(self, delta: Delta) -> None:
        """A delta arrived now."""
        now_s = time.monotonic()
        num_tokens = len(delta.token_ids)
        if num_tokens:
            last_s = self._last_token_s.get(delta.choice)
            if last_s is not None:
                self._metrics.inter_token_latency.observe((now_s - last_s) / num_tokens, num_tokens)
            elif num_tokens > 1:
                self._metrics.inter_token_latency.observe(0.0, num_tokens - 1)
            if not self._last_token_s:
                self._metrics.time_to_first_token.observe(now_s - self._arrival_s)
            self._last_token_s[delta.choice] = now_s
        if delta.finish is None:
            return
        self._num_choices_left -= 1
        if not self._has_ended and (self._num_choices_left == 0 or delta.finish.reason == "error"):
            self._metrics.e2e_request_latency.observe(now_s - self._arrival_s)
            self.end(delta.finish.reason)

    def end(self, reason: str) -> None:
        """The request ended for `reason`; later calls change nothing."""
        if not self._has_ended:
            self._has_ended = True
            self._metrics.count_finished(reason)

    def client_gone(self, *, is_stalled: bool) -> None:
        """The client did not take the whole answer; `is_stalled`: it was waited for."""
        self._metrics.num_stalled_clients += is_stalled
        self.end("abort")

    def refused(self) -> None:
        """The engine did not take the request: it is counted nowhere."""
        self._has_ended = True
