"""What a run was worth: percentiles, throughput, goodput, and what the KV pool went through.

TTFT is the time from a request's arrival to its first token, queueing included. TPOT = (E2E - TTFT) / (N - 1),
undefined for N = 1. ITL are the N - 1 gaps between tokens. E2E is the time to the last token. Percentiles are
interpolated linearly. A request counts for all of them once it has a token (for E2E and TPOT: once it has ended as
asked), for goodput if it ended as asked and met every limit given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from .history import History, RequestHistory

PERCENTILES = (50, 90, 99)
COMPLETE = frozenset({"stop", "length"})
"""Reasons of a request that has all its tokens."""
NS_PER_MS, NS_PER_S = 1e6, 1e9


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds; None: there were no values."""

    p50: float | None
    p90: float | None
    p99: float | None


class Objectives(msgspec.Struct, frozen=True):
    """What a request has to keep to count for goodput; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Latencies(msgspec.Struct, frozen=True):
    """Of a group of requests."""

    num_requests: int
    num_complete: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    goodput: float
    """Requests per second that met the objectives."""


class Report(msgspec.Struct, frozen=True):
    """Of a run. Rates are over `duration_s`."""

    duration_s: float
    """From the first arrival to the last token."""
    all: Latencies
    tenants: dict[str, Latencies]
    """Empty if there is only one."""
    reasons: dict[str, int]
    """How requests ended -> how many."""
    objectives: Objectives
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    num_preemptions: int
    preemptions_per_1000: float
    """Of 1,000 requests."""
    num_recomputed_tokens: int
    """Positions computed beyond what each answer needs once: after preemptions, and for answers that never came."""
    prefix_hit_rate: float
    """Tokens found, of those looked up."""
    kv_mean: float
    """Share of the blocks in use, over the time from the first to the last arrival."""
    kv_max: float
    mean_running: float
    max_waiting: int
    device_busy: float
    """Share of `duration_s` in which the device computed."""
    num_steps: int


def ttft_ns(request: RequestHistory) -> int | None:
    """None if no token came."""
    return int(request.token_ns[0]) - request.arrival_ns if len(request.token_ns) else None


def e2e_ns(request: RequestHistory) -> int | None:
    """None if it has not all its tokens."""
    return int(request.token_ns[-1]) - request.arrival_ns if request.reason in COMPLETE else None


def tpot_ns(request: RequestHistory) -> float | None:
    """None if it has not all its tokens, or only one."""
    num_gaps = len(request.token_ns) - 1
    if request.reason not in COMPLETE or num_gaps < 1:
        return None
    return int(request.token_ns[-1] - request.token_ns[0]) / num_gaps


def goodput(requests: Iterable[RequestHistory], objectives: Objectives, duration_s: float) -> float:
    """Complete requests per second that met every objective: 10 requests in 10 s, of which 3 fail the TTFT and 2 others
    the TPOT, are 0.5."""
    return sum(_is_good(request, objectives) for request in requests) / duration_s if duration_s > 0 else 0.0


def report_of(history: History, objectives: Objectives | None = None) -> Report:
    """All numbers of a run."""
    objectives = objectives or Objectives()
    requests, statistics, gauges = history.requests, history.statistics, history.gauges
    begin_ns = requests[0].arrival_ns
    end_ns = max(int(request.token_ns[-1]) if len(request.token_ns) else begin_ns for request in requests)
    duration_s = (end_ns - begin_ns) / NS_PER_S
    by_tenant: dict[str, list[RequestHistory]] = {}
    for request in requests:
        by_tenant.setdefault(request.tenant, []).append(request)
    reasons: dict[str, int] = {}
    for request in requests:
        reasons[request.reason] = reasons.get(request.reason, 0) + 1
    arriving = gauges.time_ns <= requests[-1].arrival_ns
    num_output_tokens = sum(len(request.token_ns) for request in requests)
    per_s = 1 / duration_s if duration_s else 0.0
    return Report(
        duration_s=duration_s,
        all=_latencies(requests, objectives, duration_s),
        tenants={
            tenant: _latencies(group, objectives, duration_s)
            for tenant, group in (by_tenant.items() if len(by_tenant) > 1 else ())
        },
        reasons=reasons,
        objectives=objectives,
        requests_per_s=sum(request.reason in COMPLETE for request in requests) * per_s,
        output_tokens_per_s=num_output_tokens * per_s,
        prompt_tokens_per_s=sum(request.num_prompt_tokens for request in requests if len(request.token_ns)) * per_s,
        num_preemptions=statistics.num_preemptions,
        preemptions_per_1000=1000 * statistics.num_preemptions / len(requests),
        num_recomputed_tokens=max(0, statistics.num_scheduled_tokens - sum(map(_needed_tokens, requests))),
        prefix_hit_rate=statistics.prefix_cache_hits / max(1, statistics.prefix_cache_queries),
        kv_mean=float(gauges.kv_share[arriving].mean()),
        kv_max=float(gauges.kv_share.max()),
        mean_running=float(gauges.num_running[arriving].mean()),
        max_waiting=int(gauges.num_waiting.max()),
        device_busy=history.busy_ns / NS_PER_S * per_s,
        num_steps=statistics.num_steps,
    )


def _needed_tokens(request: RequestHistory) -> int:
    """Positions that had to be computed once: the last token is sampled, and never computed."""
    num_tokens = len(request.token_ns)
    return request.num_prompt_tokens - request.num_cached_tokens + num_tokens - 1 if num_tokens else 0


def _is_good(request: RequestHistory, objectives: Objectives) -> bool:
    ttft, tpot = ttft_ns(request), tpot_ns(request)
    return (
        request.reason in COMPLETE
        and ttft is not None
        and (objectives.ttft_ms is None or ttft <= objectives.ttft_ms * NS_PER_MS)
        and (objectives.tpot_ms is None or tpot is None or tpot <= objectives.tpot_ms * NS_PER_MS)
    )


def _latencies(requests: Sequence[RequestHistory], objectives: Objectives, duration_s: float) -> Latencies:
    gaps = [np.diff(request.token_ns) for request in requests]
    return Latencies(
        num_requests=len(requests),
        num_complete=sum(request.reason in COMPLETE for request in requests),
        ttft_ms=_percentiles(_known(map(ttft_ns, requests))),
        tpot_ms=_percentiles(_known(map(tpot_ns, requests))),
        itl_ms=_percentiles(np.concatenate(gaps)),
        e2e_ms=_percentiles(_known(map(e2e_ns, requests))),
        goodput=goodput(requests, objectives, duration_s),
    )


def _known(values: Iterable[float | None]) -> npt.NDArray[np.float64]:
    return np.array([value for value in values if value is not None], np.float64)


def _percentiles(values_ns: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> Percentiles:
    if not len(values_ns):
        return Percentiles(None, None, None)
    return Percentiles(*(float(value) / NS_PER_MS for value in np.percentile(values_ns, PERCENTILES)))
