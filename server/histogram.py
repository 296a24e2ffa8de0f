"""A histogram that is exposed to Prometheus: counts by bucket, and the sum."""

from __future__ import annotations

from bisect import bisect_left

from prometheus_client.metrics_core import HistogramMetricFamily

TTFT_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
E2E_BUCKETS_S = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 960.0)
CHOICES_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 128.0)


class Histogram:
    """Counts by bucket: `upper_bounds` are inclusive, one more bucket takes the rest."""

    def __init__(self, upper_bounds: tuple[float, ...]) -> None:
        self._upper_bounds = upper_bounds
        self._counts = [0] * (len(upper_bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of `value`."""
        self._counts[bisect_left(self._upper_bounds, value)] += count
        self._sum += value * count

    def family(self, name: str, documentation: str) -> HistogramMetricFamily:
        """For exposition, with cumulated buckets."""
        buckets, total = [], 0
        for bound, count in zip((*map(str, self._upper_bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, documentation, buckets=buckets, sum_value=self._sum)


def token_buckets(max_tokens: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to `max_tokens`, which is the last."""
    bounds = []
    power = 1
    while power < max_tokens:
        bounds += [float(step * power) for step in (1, 2, 5) if step * power < max_tokens]
        power *= 10
    return (*bounds, float(max_tokens))
