"""The scheduler's figures, as its statistics have them at the scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from ..scheduling.statistics import SchedulerStatistics
from ..topology.schema import KVCacheSection


def engine_families(statistics: SchedulerStatistics, kv_cache: KVCacheSection) -> Iterable[Metric]:
    """Gauges and counters of the whole engine, the same whichever frontend is asked."""
    yield _cache_config(statistics, kv_cache)
    used_blocks = statistics.num_blocks - statistics.num_free_blocks
    yield from gauges(
        ("kv_blocks", "KV blocks of the pool.", statistics.num_blocks),
        (
            "kv_blocks_free",
            "KV blocks that can be allocated at once, cached ones included.",
            statistics.num_free_blocks,
        ),
        ("num_requests_running", "Requests in the batch.", statistics.num_running),
        ("num_requests_waiting", "Requests that wait, preempted ones included.", statistics.num_waiting),
        ("num_sessions_paused", "Streaming sessions that wait for input.", statistics.num_paused),
        ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", used_blocks / max(1, statistics.num_blocks)),
    )
    counters = (
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", statistics.prefix_cache_queries),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", statistics.prefix_cache_hits),
        ("num_preemptions", "Requests that gave their blocks back and started over.", statistics.num_preemptions),
        ("prompt_tokens", "Prompt tokens computed or found in the cache.", statistics.prompt_tokens),
        ("generation_tokens", "Tokens generated.", statistics.generation_tokens),
        ("leaked_blocks", "KV blocks and rows that were found without an owner and given back.", statistics.num_leaks),
        ("steps", "Steps of the engine.", statistics.num_steps),
        ("steady_steps", "Steps after which the same rows went on.", statistics.num_steady_steps),
        ("overlapped_steps", "Steady steps whose successor was published early.", statistics.num_overlapped_steps),
        ("failed_steps", "Steps that raised.", statistics.num_failed_steps),
        ("resumed_attempts", "Attempts after the first that were taken in.", statistics.num_resumed),
        ("poisoned_requests", "Requests that made steps fail or workers die.", statistics.num_poisoned),
        ("timed_out_requests", "Requests whose deadline passed, waiting or running.", statistics.num_timed_out),
        ("spec_decode_num_drafts", "Times that a request had drafts to verify.", statistics.num_drafts),
        ("spec_decode_num_draft_tokens", "Drafts that were verified.", statistics.num_draft_tokens),
        ("spec_decode_num_accepted_tokens", "Drafts that were accepted.", statistics.num_accepted_tokens),
        ("late_grammar_masks", "Tokens planned again, for their grammar's mask was late.", statistics.num_late_masks),
    )
    for name, documentation, value in counters:
        yield CounterMetricFamily(f"callboard:{name}", documentation, value=value)
    by_place = CounterMetricFamily(
        "callboard:spec_decode_num_accepted_tokens_per_pos",
        "Drafts that were accepted, by their place.",
        labels=("position",),
    )
    for place, value in enumerate(statistics.accepted_at):
        by_place.add_metric((str(place),), value)
    yield by_place
    summaries = (
        (
            "request_queue_time_seconds",
            "From a request's coming to the engine to its first row in a batch, seconds.",
            statistics.num_admitted,
            statistics.queue_time_ns / 1e9,
        ),
        (
            "request_prefill_time_seconds",
            "From a request's first row to its first token, seconds.",
            statistics.num_prefilled,
            statistics.prefill_time_ns / 1e9,
        ),
        ("iteration_tokens_total", "Tokens computed in a step.", statistics.num_steps, statistics.num_scheduled_tokens),
    )
    for name, documentation, count, total in summaries:
        yield SummaryMetricFamily(f"callboard:{name}", documentation, count_value=count, sum_value=total)


def _cache_config(statistics: SchedulerStatistics, kv_cache: KVCacheSection) -> Metric:
    """1, with labels that routers read under these names, whatever the device."""
    labels = {
        "block_size": str(kv_cache.block_size),
        "num_gpu_blocks": str(statistics.num_blocks),
        "enable_prefix_caching": str(kv_cache.prefix_caching),
    }
    family = GaugeMetricFamily("callboard:cache_config_info", "How the KV cache is set up.", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def gauges(*entries: tuple[str, str, float]) -> Iterable[Metric]:
    """(name without the prefix, documentation, value) each."""
    for name, documentation, value in entries:
        yield GaugeMetricFamily(f"callboard:{name}", documentation, value=value)
