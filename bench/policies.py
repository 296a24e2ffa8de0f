"""Policies and watermarks over real traces, simulated at several loads of the KV pool; prints Markdown.

    python -m callboard.bench.policies TRACE[:SPEEDUP] ... [--loads 0.7 1.0 1.3] [--limit N] [--max-prompt TOKENS]

Load. First each trace runs with a pool in which nothing waits for a block. The time average of the blocks that it has
in use between the first and the last arrival is the trace's demand. At load L the pool has demand / L blocks, and at
least what the longest request needs (--max-prompt keeps that below it): at 0.7 it is short in bursts only, at 1.3 the
queue grows as long as requests come. Arrivals stay the same at every load; SPEEDUP sets how busy the device is beside
that. Memory that the pool does not get is left unused, so the device's step times stay the same, too.

Every tenth request is urgent (priority -1) and a tenant of its own; all others are another tenant's. "The tenth" in the
tables are those.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..kv_cache.block_pool import blocks_for
from ..simulation import (
    Objectives,
    Report,
    Roofline,
    Trace,
    clamped,
    find_device,
    read_trace,
    report_of,
    scaled,
    simulate,
)
from ..simulation.settings import limits_of
from ..simulation.tables import markdown, milliseconds
from .llama_shape import LLAMA_3_1_8B
from .machine import describe_machine

BASE = {
    "admission": "chunk",
    "max_num_seqs": "256",
    "max_queued_requests": "1000000",
    "max_queued_tokens": "1000000000",
}
POLICIES: dict[str, dict[str, str]] = {
    "fcfs (lifo, chunk)": {},
    "priority": {"policy": "priority"},
    "fair": {"policy": "fair"},
    "cache_aware": {"policy": "cache_aware"},
    "fcfs, whole_prompt": {"admission": "whole_prompt"},
    "fcfs, retract": {"preemption": "retract"},
    "fcfs, estimate + retract": {"admission": "estimate", "preemption": "retract"},
    "fcfs, cost": {"preemption": "cost"},
}
WATERMARKS = ("0", "0.005", "0.01", "0.02", "0.05")
OBJECTIVES = Objectives(ttft_ms=5000, tpot_ms=50)
TENTH, REST = "tenth", "rest"
_ROOMY_BLOCKS = 1_000_000


class Case(msgspec.Struct, frozen=True):
    """A trace and how many blocks it would use."""

    name: str
    trace: Trace
    speedup: float
    demand_blocks: int
    longest_blocks: int
    mean_running: float
    """Rows between the first and the last arrival, with room for everything."""

    def num_blocks(self, load: float) -> int:
        return max(self.longest_blocks, round(self.demand_blocks / load))


class Bench:
    """Runs on one device."""

    def __init__(self, device: str) -> None:
        self._times = Roofline(LLAMA_3_1_8B, find_device(device))

    def run(self, trace: Trace, num_blocks: int, changes: Mapping[str, str]) -> Report:
        limits = limits_of({**BASE, **changes}, num_blocks=num_blocks, max_model_len=LLAMA_3_1_8B.max_position)
        return report_of(simulate(trace, limits, self._times), OBJECTIVES)

    def case(self, text: str, limit: int | None, max_prompt: int | None) -> Case:
        """`FILE:SPEEDUP`"""
        name, colon, speedup = text.rpartition(":")
        path, factor = (Path(name), float(speedup)) if colon else (Path(text), 1.0)
        trace = [
            msgspec.structs.replace(request, priority=0 if index % 10 else -1, tenant=REST if index % 10 else TENTH)
            for index, request in enumerate(
                clamped(scaled(read_trace(path, limit), speedup=factor), max_prompt=max_prompt)
            )
        ]
        report = self.run(trace, _ROOMY_BLOCKS, {})
        lengths = (request.num_prompt_tokens + request.num_output_tokens for request in trace)
        return Case(
            name=path.name,
            trace=trace,
            speedup=factor,
            demand_blocks=round(report.kv_mean * _ROOMY_BLOCKS),
            longest_blocks=blocks_for(max(lengths), 16),
            mean_running=report.mean_running,
        )

    def rows(self, case: Case, loads: Sequence[float], variants: Mapping[str, Mapping[str, str]]) -> list[list[str]]:
        """One row a load and variant."""
        head = ["load", "setting", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "goodput/s", "preempted/1000"]
        rows = [[*head, "recomputed", "prefix hits", "TTFT p99 of the tenth"]]
        for load in loads:
            for name, changes in variants.items():
                report = self.run(case.trace, case.num_blocks(load), changes)
                rows.append([f"{load:g}", name, *_cells(report)])
                print(case.name, *rows[-1], file=sys.stderr, flush=True)
        return rows


def _cells(report: Report) -> list[str]:
    every = report.all
    times = (every.ttft_ms.p50, every.ttft_ms.p99, every.itl_ms.p50, every.itl_ms.p99)
    return [
        *map(milliseconds, times),
        f"{every.goodput:.2f}",
        f"{report.preemptions_per_1000:.1f}",
        f"{report.num_recomputed_tokens:,}",
        f"{report.prefix_hit_rate:.1%}",
        milliseconds(report.tenants[TENTH].ttft_ms.p99),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE[:SPEEDUP]")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, 1.0, 1.3])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-prompt", type=int)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    bench = Bench(args.device)
    watermarks = {
        f"{admission}, watermark {float(share):.1%}": {"admission": admission, "watermark": share}
        for admission in ("chunk", "whole_prompt")
        for share in WATERMARKS
    }
    lines = [
        f"Llama-3.1-8B on a simulated {args.device}; times in ms; goodput: complete, "
        f"TTFT <= {OBJECTIVES.ttft_ms:,.0f} ms and TPOT <= {OBJECTIVES.tpot_ms:,.0f} ms. "
        f"Simulated on {describe_machine()}."
    ]
    for text in args.traces:
        case = bench.case(text, args.limit, args.max_prompt)
        lines += [
            "",
            f"**{case.name}**, arrivals {case.speedup:g} times as dense: {len(case.trace):,} requests, demand "
            f"{case.demand_blocks:,} blocks, the longest request {case.longest_blocks:,}; pools of "
            f"{', '.join(f'{case.num_blocks(load):,}' for load in args.loads)} blocks; "
            f"{case.mean_running:.1f} rows on average with room for everything.",
        ]
        for variants in (POLICIES, watermarks):
            lines += ["", *markdown(bench.rows(case, args.loads, variants))]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.output is not None:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
