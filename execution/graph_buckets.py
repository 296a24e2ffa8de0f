"""Batch sizes for which a decode graph is captured; a batch runs in the smallest that holds it, padded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MAX_CAPTURE_SIZE = 512


def capture_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, then 8..248 by 8, then 256.. by 16, up to min(2 * max_num_seqs, 512); ascending (51 sizes for 256)."""
    limit = min(2 * max_num_seqs, MAX_CAPTURE_SIZE)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, MAX_CAPTURE_SIZE + 1, 16)]
    return [size for size in sizes if size <= limit]


def graph_bucket(num_rows: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending `sizes` that holds `num_rows`, or None: such a batch runs without a full graph."""
    index = bisect_left(sizes, num_rows)
    return sizes[index] if index < len(sizes) else None


def pad_rows(num_rows: int, sizes: Sequence[int]) -> int:
    """Rows of padding that a batch of `num_rows` gets: 13 -> 3, 300 -> 4, none without a full graph."""
    bucket = graph_bucket(num_rows, sizes)
    return 0 if bucket is None else bucket - num_rows
