"""The same numbers under the names that vLLM gives them, for dashboards, routers and scrapers made for it.

A metric is among them if its meaning is the same; the labels `model_name` and `engine` are added, as there. Of some
histograms the engine has the sum and the count alone: means can be had of them, and no quantiles.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

OWN_PREFIX = "callboard:"
VLLM_PREFIX = "vllm:"
ENGINE = "0"

SHARED_NAMES = frozenset(
    {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "prompt_tokens",
        "generation_tokens",
        "spec_decode_num_drafts",
        "spec_decode_num_accepted_tokens_per_pos",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
        "request_success",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "iteration_tokens_total",
        "request_decode_time_seconds",
        "e2e_request_latency_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_max_num_generation_tokens",
        "request_params_n",
        "request_params_max_tokens",
        "cache_config_info",
    }
)
"""Without the prefix; Prometheus' text adds `_total` to the names of counters."""


def vllm_families(families: Iterable[Metric], model_name: str) -> Iterable[Metric]:
    """Those of `families` that vLLM has too, as it names and labels them."""
    labels = {"model_name": model_name, "engine": ENGINE}
    for family in families:
        if family.name.removeprefix(OWN_PREFIX) not in SHARED_NAMES:
            continue
        alias = Metric(_alias(family.name), family.documentation, family.type)
        for sample in family.samples:
            alias.add_sample(_alias(sample.name), {**labels, **sample.labels}, sample.value)
        yield alias


def _alias(name: str) -> str:
    return VLLM_PREFIX + name.removeprefix(OWN_PREFIX)
