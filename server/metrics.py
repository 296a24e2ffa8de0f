"""What /metrics shows.

Gauges and engine counters are read from the scheduler's statistics at each scrape; latencies and finish reasons are
counted here, since only the server sees them. All names begin with `callboard:`.

| metric                       | counts                                                                      |
|------------------------------|-----------------------------------------------------------------------------|
| request_success_total        | requests that the engine took and that ended, by finish reason; `abort`: the |
|                              | client left; `error`: a 500 or an error event                                |
| time_to_first_token_seconds  | one a request that got a token: from the request's head to that token        |
| inter_token_latency_seconds  | N - 1 a choice of N tokens; tokens that come together share their interval   |
| e2e_request_latency_seconds  | one a request that the engine ended                                          |
| stalled_clients_total        | answers given up because the client took nothing for `client_stall_s`        |

A request with several choices is one request: it ends, and is counted, with the last of them. Requests that are refused
(4xx, 503) are counted nowhere. With several frontends each counts what went through it and shows its own live requests;
the scheduler's figures are the same whichever is asked.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..actors.frontend_api import FrontendAPI

FINISH_REASONS = ("stop", "length", "abort", "error")

TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
E2E_BUCKETS_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 960.0)


class Histogram:
    """Counts by bucket: `upper_bounds` are inclusive and in seconds, one more bucket takes the rest."""

    def __init__(self, upper_bounds: tuple[float, ...]) -> None:
        self._upper_bounds = upper_bounds
        self._counts = [0] * (len(upper_bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of `value` seconds."""
        self._counts[bisect_left(self._upper_bounds, value)] += count
        self._sum += value * count

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """For exposition, with cumulated buckets."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, self._upper_bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=self._sum)


class ServerMetrics(Collector):
    """The metrics of one server, in a registry of its own."""

    def __init__(self, frontend: FrontendAPI) -> None:
        self._frontend = frontend
        self.registry = CollectorRegistry(auto_describe=False)
        self.time_to_first_token = Histogram(TTFT_BUCKETS_S)
        self.inter_token_latency = Histogram(ITL_BUCKETS_S)
        self.e2e_request_latency = Histogram(E2E_BUCKETS_S)
        self.num_stalled_clients = 0
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self.registry.register(self)

    def count_finished(self, reason: str) -> None:
        """A request that the engine took has ended."""
        self._finished[reason] = self._finished.get(reason, 0) + 1

    def describe(self) -> Iterable[Metric]:
        """Nothing: registration must not ask the scheduler."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All metrics, read now."""
        yield from self._engine_metrics()
        success = CounterMetricFamily(
            "callboard:request_success", "Requests that ended, by finish reason.", labels=["finished_reason"]
        )
        for reason, count in self._finished.items():
            success.add_metric([reason], count)
        yield success
        yield CounterMetricFamily(
            "callboard:stalled_clients", "Answers that their clients did not take.", value=self.num_stalled_clients
        )
        yield from self._process_metrics()
        yield self.time_to_first_token.family(
            "callboard:time_to_first_token_seconds", "From the request to its first token, seconds."
        )
        yield self.inter_token_latency.family(
            "callboard:inter_token_latency_seconds", "Between two tokens of a request, seconds."
        )
        yield self.e2e_request_latency.family(
            "callboard:e2e_request_latency_seconds", "From the request to its end, seconds."
        )

    def _engine_metrics(self) -> Iterable[Metric]:
        statistics = self._frontend.scheduler_statistics()
        used_blocks = statistics.num_blocks - statistics.num_free_blocks
        gauges = (
            ("kv_blocks", "KV blocks of the pool.", statistics.num_blocks),
            (
                "kv_blocks_free",
                "KV blocks that can be allocated at once, cached ones included.",
                statistics.num_free_blocks,
            ),
            ("num_requests_running", "Requests in the batch.", statistics.num_running),
            ("num_requests_waiting", "Requests that wait, preempted ones included.", statistics.num_waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", used_blocks / max(1, statistics.num_blocks)),
        )
        yield from _gauges(gauges)
        counters = (
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", statistics.prefix_cache_queries),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", statistics.prefix_cache_hits),
            ("num_preemptions", "Requests that gave their blocks back and started over.", statistics.num_preemptions),
            ("prompt_tokens", "Prompt tokens computed or found in the cache.", statistics.prompt_tokens),
            ("generation_tokens", "Tokens generated.", statistics.generation_tokens),
            ("leaked_blocks", "KV blocks that were found without an owner and given back.", statistics.num_leaks),
            ("steps", "Steps of the engine.", statistics.num_steps),
            ("steady_steps", "Steps after which the same rows went on.", statistics.num_steady_steps),
            ("overlapped_steps", "Steady steps whose successor was published early.", statistics.num_overlapped_steps),
        )
        for name, documentation, value in counters:
            yield CounterMetricFamily(f"callboard:{name}", documentation, value=value)

    def _process_metrics(self) -> Iterable[Metric]:
        """Of the process that answers the scrape."""
        return _gauges(
            (
                (
                    "frontend_live_requests",
                    "Requests of this frontend that have not ended.",
                    self._frontend.num_live_requests(),
                ),
                ("asyncio_tasks", "Tasks of this frontend's process.", len(asyncio.all_tasks())),
            )
        )


def _gauges(entries: Iterable[tuple[str, str, float]]) -> Iterable[Metric]:
    for name, documentation, value in entries:
        yield GaugeMetricFamily(f"callboard:{name}", documentation, value=value)
