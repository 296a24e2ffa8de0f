"""The grammar actor's figures, as its statistics have them at the scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, Metric, SummaryMetricFamily

from ..actors.grammar_statistics import GrammarStatistics
from .engine_metrics import gauges


def grammar_families(statistics: GrammarStatistics) -> Iterable[Metric]:
    """Since the start of the actor's present life."""
    yield SummaryMetricFamily(
        "callboard:grammar_mask_seconds",
        "From a token of a constrained answer to the mask of the next one, seconds.",
        count_value=statistics.num_masks,
        sum_value=statistics.mask_time_ns / 1e9,
    )
    yield from gauges(
        ("grammar_mask_seconds_p50", "Median of the last masks, seconds.", statistics.mask_p50_ns / 1e9),
        ("grammar_mask_seconds_p99", "99th percentile of the last masks, seconds.", statistics.mask_p99_ns / 1e9),
    )
    counters = (
        ("grammars_compiled", "Grammars that were compiled.", statistics.num_compiled),
        ("grammars_refused", "Grammars that cannot be compiled.", statistics.num_refused),
        ("grammar_failures", "Requests whose grammar became too large to follow.", statistics.num_failed),
    )
    for name, documentation, value in counters:
        yield CounterMetricFamily(f"callboard:{name}", documentation, value=value)
