"""Reports as text."""

from __future__ import annotations

from collections.abc import Sequence

from .report import Latencies, Percentiles, Report

_HEAD = ("", "p50", "p90", "p99")


def report_lines(report: Report) -> list[str]:
    """One run, for a person."""
    lines = [
        f"{report.all.num_complete:,} of {report.all.num_requests:,} requests complete in {report.duration_s:,.1f} s "
        f"({', '.join(f'{reason} {count:,}' for reason, count in sorted(report.reasons.items()))})",
        *_latency_lines("all", report.all),
    ]
    for tenant, latencies in sorted(report.tenants.items()):
        lines += _latency_lines(f"tenant {tenant or '(none)'}", latencies)
    limits = [
        f"{name} <= {value:g} ms"
        for name, value in (("TTFT", report.objectives.ttft_ms), ("TPOT", report.objectives.tpot_ms))
        if value is not None
    ]
    lines += [
        f"throughput      {report.requests_per_s:.2f} requests/s, {report.output_tokens_per_s:,.0f} output tokens/s, "
        f"{report.prompt_tokens_per_s:,.0f} prompt tokens/s",
        f"goodput         {report.all.goodput:.2f} requests/s ({' and '.join(limits) or 'no limit'})",
        f"preemptions     {report.num_preemptions:,}, {report.preemptions_per_1000:.1f} of 1,000 requests; "
        f"{report.num_recomputed_tokens:,} tokens computed again or in vain",
        f"prefix cache    {report.prefix_hit_rate:.1%} of the tokens looked up",
        f"KV pool         {report.kv_mean:.1%} in use on average while requests come, {report.kv_max:.1%} at most",
        f"queue           {report.mean_running:.1f} running on average, {report.max_waiting:,} waiting at most",
        f"device          busy for {report.device_busy:.1%}, {report.num_steps:,} steps",
    ]
    return lines


def comparison_rows(reports: Sequence[tuple[str, Report]]) -> list[list[str]]:
    """A head, and one row a run."""
    head = ["", "TTFT p50", "TTFT p99", "TPOT p50", "ITL p50", "ITL p99", "E2E p99", "tokens/s", "goodput/s"]
    rows = [[*head, "preempted/1000", "recomputed", "prefix hits", "KV mean", "done"]]
    for name, report in reports:
        every = report.all
        ttft, tpot, itl, e2e = every.ttft_ms, every.tpot_ms, every.itl_ms, every.e2e_ms
        times = (ttft.p50, ttft.p99, tpot.p50, itl.p50, itl.p99, e2e.p99)
        rows.append(
            [
                name,
                *map(milliseconds, times),
                f"{report.output_tokens_per_s:,.0f}",
                f"{every.goodput:.2f}",
                f"{report.preemptions_per_1000:.1f}",
                f"{report.num_recomputed_tokens:,}",
                f"{report.prefix_hit_rate:.1%}",
                f"{report.kv_mean:.1%}",
                f"{every.num_complete:,}/{every.num_requests:,}",
            ]
        )
    return rows


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under each other, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """The same as a table for a page."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"|---|{'---:|' * (len(rows[0]) - 1)}", *body]


def milliseconds(value: float | None) -> str:
    """Three digits or more: `4.93`, `49.4`, `1,234`; `-` for None."""
    if value is None:
        return "-"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def _latency_lines(name: str, latencies: Latencies) -> list[str]:
    named: tuple[tuple[str, Percentiles], ...] = (
        ("TTFT", latencies.ttft_ms),
        ("TPOT", latencies.tpot_ms),
        ("ITL", latencies.itl_ms),
        ("E2E", latencies.e2e_ms),
    )
    rows = [[f"{name}, ms", *_HEAD[1:]]]
    rows += [[f"  {label}", *map(milliseconds, (p.p50, p.p90, p.p99))] for label, p in named]
    return aligned(rows)
