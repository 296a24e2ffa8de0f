"""Times of launches in a CUDA graph, and tables of them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import torch

Launch = Callable[[], object]

COPY_BYTES_PER_S = 4.26e12
"""Read and written by a device copy on one H200 (2026-11-29)."""


def microseconds_each(launches: Sequence[Launch], num_replays: int = 20) -> float:
    """Time of one of `launches`, run one after another in a CUDA graph: the median of `num_replays` replays.

    Give them inputs of their own, more bytes together than the cache holds, or the cache is what is measured.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for launch in launches[:2]:  # compiles
            launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    for _ in range(3):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(num_replays + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    times_ms = [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]
    return float(statistics.median(times_ms)) * 1e3 / len(launches)


def device_line() -> str:
    """The card and the versions, for the head of a table."""
    import triton

    return f"{torch.cuda.get_device_name()} · torch {torch.__version__} · triton {triton.__version__}"
