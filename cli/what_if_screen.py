"""Recorded and what-if side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..journal.outcomes import Outcome, latencies_of
from ..journal.step_model import StepModel
from ..scheduling.statistics import SchedulerStatistics


class Column(NamedTuple):
    """One run."""

    title: str
    outcomes: Collection[Outcome]
    statistics: SchedulerStatistics
    num_steps: int
    duration_ns: int


def comparison_lines(columns: Sequence[Column], model: StepModel) -> list[str]:
    """A table: a line a measure, a column a run."""
    cells = [_cells(column) for column in columns]
    titles = [column.title for column in columns]
    widths = [max(len(title), *(len(text) for _, text in rows), 10) for title, rows in zip(titles, cells, strict=True)]
    heads = "  ".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    lines = [f"{'':<22}  {heads}"]
    for row in zip(*cells, strict=True):
        values = "  ".join(f"{text:>{width}}" for (_, text), width in zip(row, widths, strict=True))
        lines.append(f"{row[0][0]:<22}  {values}")
    a, b, c, d = model.coefficients
    lines.append(
        f"modelled: a step takes {a / 1e3:,.0f} us + {b / 1e3:,.2f} a token + {c / 1e3:,.2f} a row + "
        f"{d / 1e3:,.4f} a position read; fitted from {model.num_steps:,} steps, median error {model.error:.0%}"
    )
    return lines


def _cells(column: Column) -> list[tuple[str, str]]:
    latencies, statistics = latencies_of(column.outcomes), column.statistics
    cells = [("requests", f"{len(column.outcomes):,}"), ("  finished", f"{latencies.num_finished:,}")]
    cells.append(("  refused", f"{latencies.num_refused:,}"))
    for name in ("ttft", "itl", "e2e"):
        values = getattr(latencies, f"{name}_ms")
        for share, value in zip((50, 90, 99), values, strict=True):
            cells.append((f"{name.upper()} p{share} ms", f"{value:,.2f}"))
    return [
        *cells,
        ("preemptions", f"{statistics.num_preemptions:,}"),
        ("steps", f"{column.num_steps:,}"),
        ("prefix hits, tokens", f"{statistics.prefix_cache_hits:,}"),
        ("generated tokens", f"{statistics.generation_tokens:,}"),
        ("time s", f"{column.duration_ns / 1e9:,.2f}"),
    ]
