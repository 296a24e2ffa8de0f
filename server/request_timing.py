"""The times of one request, taken as its deltas arrive in the server; for streams and whole answers alike.

An HTTP request is one request here, whatever its `n` and however many prompts it has: it has one first token, that of
whichever choice was first, and it ends with the last of its choices.
"""

from __future__ import annotations

import time

from ..actors.frontend_api import Delta
from ..mailbox.messages.requests import Usage
from .metrics import ServerMetrics


class RequestTiming:
    """Observes one request. `end` counts it once, by how it, or the last of its choices, ended."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics.requests
        self._arrival_s = time.monotonic()
        self._first_token_s = 0.0
        """Of all choices; counts once `_choices` has one."""
        self._choices: dict[int, _ChoiceTiming] = {}
        self._usages: dict[int, Usage] = {}
        """Of the choices that have ended."""
        self._num_choices_left = 1
        self._n = 1
        self._max_tokens: int | None = None
        self._has_ended = False

    @property
    def arrival_ns(self) -> int:
        """When it came, by CLOCK_MONOTONIC."""
        return int(self._arrival_s * 1e9)

    def expect(self, num_choices: int, *, n: int | None = None, max_tokens: int | None = None) -> None:
        """The request ends with the last of so many choices; called before the first delta.

        `n`: choices of each prompt, if they are not those of a single one: choice i belongs to prompt i // n;
        `max_tokens`: the request's own.
        """
        self._num_choices_left = num_choices
        self._n = num_choices if n is None else n
        self._max_tokens = max_tokens

    def observe(self, delta: Delta) -> None:
        """A delta arrived now."""
        now_s = time.monotonic()
        num_tokens = len(delta.token_ids)
        if num_tokens:
            choice = self._choices.get(delta.choice)
            if choice is not None:
                self._metrics.inter_token_latency.observe((now_s - choice.last_s) / num_tokens, num_tokens)
                choice.last_s = now_s
                choice.num_tokens += num_tokens
            else:
                self._on_first_tokens(delta.choice, num_tokens, now_s)
        if delta.finish is None:
            return
        self._num_choices_left -= 1
        self._usages[delta.choice] = delta.finish.usage
        if not self._has_ended and (self._num_choices_left == 0 or delta.finish.reason == "error"):
            self._on_last_choice(now_s, is_error=delta.finish.reason == "error")
            self.end(delta.finish.reason)

    def _on_first_tokens(self, choice: int, num_tokens: int, now_s: float) -> None:
        if num_tokens > 1:
            self._metrics.inter_token_latency.observe(0.0, num_tokens - 1)
        if not self._choices:
            self._first_token_s = now_s
            self._metrics.time_to_first_token.observe(now_s - self._arrival_s)
        self._choices[choice] = _ChoiceTiming(now_s, num_tokens)

    def _on_last_choice(self, now_s: float, *, is_error: bool) -> None:
        metrics = self._metrics
        metrics.e2e_request_latency.observe(now_s - self._arrival_s)
        if self._choices:
            last_s = max(choice.last_s for choice in self._choices.values())
            metrics.decode_time.observe(last_s - self._first_token_s)
        for choice in self._choices.values():
            if choice.num_tokens > 1:
                metrics.time_per_output_token.observe((choice.last_s - choice.first_s) / (choice.num_tokens - 1))
        if is_error:
            return  # what it might have become is not known
        prompts: dict[int, int] = {}
        for index, usage in self._usages.items():
            prompts[index // self._n] = max(usage.prompt_tokens, prompts.get(index // self._n, 0))
        outputs = [usage.completion_tokens for usage in self._usages.values()]
        metrics.prompt_tokens.observe(sum(prompts.values()))
        metrics.generation_tokens.observe(sum(outputs))
        metrics.max_num_generation_tokens.observe(max(outputs))
        metrics.params_n.observe(self._n)
        if self._max_tokens is not None:
            metrics.params_max_tokens.observe(self._max_tokens)

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


class _ChoiceTiming:
    """When the tokens of a choice came."""

    __slots__ = ("first_s", "last_s", "num_tokens")

    def __init__(self, now_s: float, num_tokens: int) -> None:
        self.first_s = self.last_s = now_s
        self.num_tokens = num_tokens
