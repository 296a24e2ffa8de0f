"""Pictures of a run, as PNG or SVG: needs matplotlib (`pip install 'callboard[plots]'`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from .history import History
from .report import NS_PER_MS, NS_PER_S, e2e_ns, tpot_ns, ttft_ns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SUFFIXES = (".png", ".svg")
Run = tuple[str, History]


def check_plot(path: Path) -> None:
    """Say before a long run that there would be no picture. Raises ConfigError."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path} is no picture's name", advice=f"end it with {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", advice="make it, or name another")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("pictures need matplotlib", advice="pip install 'callboard[plots]'") from error


def write_plots(path: Path, runs: Sequence[Run]) -> None:
    """KV use, running and waiting, TTFT over time, and the distributions of TTFT, TPOT and E2E: one line a run.

    Raises ConfigError as `check_plot` does.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 11))
    figure.subplots_adjust(left=0.06, right=0.98, bottom=0.05, top=0.96, hspace=0.32, wspace=0.15)
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(3, 2).flat)
    _over_time(axes[0], axes[1], axes[2], runs)
    for axis, (label, of_request) in zip(
        axes[3:], (("TTFT", ttft_ns), ("TPOT", tpot_ns), ("E2E", e2e_ns)), strict=True
    ):
        for name, history in runs:
            values = [value for value in map(of_request, history.requests) if value is not None]
            _distribution(axis, name, np.array(values, np.float64) / NS_PER_MS)
        _label(axis, f"{label} distribution", f"{label} [ms]", "share of requests")
        axis.set_xscale("log")
        _write_out(axis.xaxis)
    figure.savefig(path)


def _over_time(kv: Axes, queue: Axes, first: Axes, runs: Sequence[Run]) -> None:
    for name, history in runs:
        gauges = history.gauges
        times = gauges.time_ns / NS_PER_S
        kv.plot(times, 100 * gauges.kv_share, label=name, linewidth=0.8)
        (line,) = queue.plot(times, gauges.num_running, label=f"{name} running".strip(), linewidth=0.8)
        queue.plot(
            times, gauges.num_waiting, "--", color=line.get_color(), label=f"{name} waiting".strip(), linewidth=0.8
        )
        served = [request for request in history.requests if len(request.token_ns)]
        arrivals = [request.arrival_ns / NS_PER_S for request in served]
        first.scatter(arrivals, [(ttft_ns(request) or 0) / NS_PER_MS for request in served], s=2, label=name)
    _label(kv, "KV blocks in use", "time [s]", "% of the pool")
    _label(queue, "requests", "time [s]", "requests")
    _label(first, "TTFT by arrival", "arrival [s]", "TTFT [ms]")
    first.set_yscale("log")
    _write_out(first.yaxis)


def _distribution(axis: Axes, name: str, values: npt.NDArray[np.float64]) -> None:
    if len(values):
        axis.step(np.sort(values), np.arange(1, len(values) + 1) / len(values), label=name, linewidth=0.9)


def _write_out(axis: Axis) -> None:
    """`1000` and not a power of ten; nothing between."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _label(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3)
    if any(label for label in axis.get_legend_handles_labels()[1]):
        axis.legend(fontsize="small")
