"""What the server counts of generating requests: how they ended, how long they took, how large they were."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from .histogram import CHOICES_BUCKETS, E2E_BUCKETS_S, ITL_BUCKETS_S, TTFT_BUCKETS_S, Histogram, token_buckets

FINISH_REASONS = ("stop", "length", "repetition", "timeout", "abort", "error")
"""Shown from the start, so that a rate has a zero to begin at."""


class RequestMetrics:
    """Histograms and counters that `RequestTiming` fills; the table of server/metrics.py defines each."""

    def __init__(self, max_model_len: int) -> None:
        by_tokens = token_buckets(max_model_len)
        self.time_to_first_token = Histogram(TTFT_BUCKETS_S)
        self.inter_token_latency = Histogram(ITL_BUCKETS_S)
        self.time_per_output_token = Histogram(ITL_BUCKETS_S)
        self.decode_time = Histogram(E2E_BUCKETS_S)
        self.e2e_request_latency = Histogram(E2E_BUCKETS_S)
        self.prompt_tokens = Histogram(by_tokens)
        self.generation_tokens = Histogram(by_tokens)
        self.max_num_generation_tokens = Histogram(by_tokens)
        self.params_n = Histogram(CHOICES_BUCKETS)
        self.params_max_tokens = Histogram(by_tokens)
        self.num_stalled_clients = 0
        self._finished = dict.fromkeys(FINISH_REASONS, 0)

    def count_finished(self, reason: str) -> None:
        """A request that the engine took has ended."""
        self._finished[reason] = self._finished.get(reason, 0) + 1

    def families(self) -> Iterable[Metric]:
        """For exposition."""
        success = CounterMetricFamily(
            "callboard:request_success", "Requests that ended, by finish reason.", labels=["finished_reason"]
        )
        for reason, count in self._finished.items():
            success.add_metric([reason], count)
        yield success
        yield CounterMetricFamily(
            "callboard:stalled_clients", "Answers that their clients did not take.", value=self.num_stalled_clients
        )
        for name, documentation, histogram in self._histograms():
            yield histogram.family(f"callboard:{name}", documentation)

    def _histograms(self) -> tuple[tuple[str, str, Histogram], ...]:
        return (
            ("time_to_first_token_seconds", "From the request to its first token, seconds.", self.time_to_first_token),
            ("inter_token_latency_seconds", "Between two tokens of a choice, seconds.", self.inter_token_latency),
            (
                "request_time_per_output_token_seconds",
                "From a choice's first token to its last, by the tokens after the first, seconds.",
                self.time_per_output_token,
            ),
            (
                "request_decode_time_seconds",
                "From the request's first token to its last, seconds.",
                self.decode_time,
            ),
            ("e2e_request_latency_seconds", "From the request to its end, seconds.", self.e2e_request_latency),
            ("request_prompt_tokens", "Tokens of the request's prompts.", self.prompt_tokens),
            ("request_generation_tokens", "Tokens generated for the request.", self.generation_tokens),
            (
                "request_max_num_generation_tokens",
                "Tokens of the request's longest choice.",
                self.max_num_generation_tokens,
            ),
            ("request_params_n", "Choices asked for, of each prompt.", self.params_n),
            ("request_params_max_tokens", "max_tokens of requests that set it.", self.params_max_tokens),
        )
