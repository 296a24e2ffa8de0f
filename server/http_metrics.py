"""Counts HTTP requests by endpoint, method and status; nothing that a client makes up becomes a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, Metric

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CLIENT_GONE = 499
"""The status of a request whose client left before its answer had ended."""


class HttpMetrics:
    """One count a request whose head could be read."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()

    def count(self, path: str | None, method: str, status: int) -> None:
        """`path`: the endpoint's template, None for a path or method that is not served."""
        self._requests[path or "none", method if method in METHODS else "other", status] += 1

    def families(self) -> Iterable[Metric]:
        """For exposition."""
        requests = CounterMetricFamily(
            "callboard:http_requests", "HTTP requests answered.", labels=["handler", "method", "status"]
        )
        for (path, method, status), count in self._requests.items():
            requests.add_metric([path, method, str(status)], count)
        yield requests
