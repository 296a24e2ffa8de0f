"""What /metrics shows.

Gauges and engine counters are read from the scheduler's statistics at each scrape; latencies, sizes and finish reasons
are counted here, since only the server sees them. The names begin with `callboard:`, those of the process with
`process_`. docs/metrics.md tells all of them; these are the server's own:

| metric                                | counts                                                                     |
|---------------------------------------|----------------------------------------------------------------------------|
| request_success_total                 | requests that the engine took and that ended, by finish reason; `abort`:   |
|                                       | the client left; `error`: a 500 or an error event                          |
| time_to_first_token_seconds           | one a request that got a token: from the request's head to that token      |
| inter_token_latency_seconds           | N - 1 a choice of N tokens; tokens that come together share their interval |
| request_time_per_output_token_seconds | one a choice of N > 1 tokens that the engine ended: first to last / (N - 1) |
| request_decode_time_seconds           | one a request that got a token and was ended by the engine: first to last  |
| e2e_request_latency_seconds           | one a request that the engine ended                                        |
| request_prompt_tokens                 | one a request that the engine ended without an error: prompts count once   |
| request_generation_tokens             | as above: tokens of all choices                                            |
| request_max_num_generation_tokens     | as above: tokens of the longest choice                                     |
| request_params_n                      | as above: `n`                                                              |
| request_params_max_tokens             | as above, of requests that set `max_tokens`                                |
| stalled_clients_total                 | answers given up because the client took nothing for `client_stall_s`      |
| http_requests_total                   | HTTP requests by `handler` (path template, `none` where nothing is served), |
|                                       | `method` and `status`; 499: the client left before the end of the answer   |

A request with several choices is one request: it ends, and is counted, with the last of them. Requests that are refused
(4xx, 503) are counted by `http_requests_total` alone. With several frontends each counts what went through it and shows
its own live requests; the scheduler's figures are the same whichever is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from ..actors.frontend_api import FrontendAPI
from .engine_metrics import engine_families, gauges
from .grammar_metrics import grammar_families
from .http_metrics import HttpMetrics
from .request_metrics import RequestMetrics
from .vllm_metrics import vllm_families


class ServerMetrics(Collector):
    """The metrics of one server."""

    def __init__(self, frontend: FrontendAPI) -> None:
        self._frontend = frontend
        self._process = ProcessCollector(registry=None)
        self.requests = RequestMetrics(frontend.max_model_len)
        self.http = HttpMetrics()

    def collect(self) -> Iterable[Metric]:
        """All metrics under their own names, read now."""
        yield from self._shared_families()
        yield from self.http.families()
        yield from gauges(
            (
                "frontend_live_requests",
                "Requests of this frontend that have not ended.",
                self._frontend.num_live_requests(),
            ),
            ("asyncio_tasks", "Tasks of this frontend's process.", len(asyncio.all_tasks())),
        )
        yield from self._process.collect()

    def exposition(self, *, with_vllm_names: bool) -> bytes:
        """The text format; `with_vllm_names`: the same numbers once more, after all others."""
        text = generate_latest(self)
        if with_vllm_names:
            text += generate_latest(_Families(vllm_families(self._shared_families(), self._frontend.model_name)))
        return text

    def _shared_families(self) -> Iterable[Metric]:
        """Of the engine and of requests."""
        yield from engine_families(self._frontend.scheduler_statistics(), self._frontend.kv_cache)
        grammar = self._frontend.grammar_statistics()
        if grammar is not None:
            yield from grammar_families(grammar)
        yield from self.requests.families()


class _Families(Collector):
    """Given metrics, for exposition."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
