"""Graph buckets: the golden sizes, and that a bucket is the smallest that holds a batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.execution.graph_buckets import capture_sizes, graph_bucket, pad_rows

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())
SIZES = capture_sizes(256)


def test_capture_sizes_default_256_seqs() -> None:
    assert GOLDEN["capture_sizes_default_256_seqs"]["value"] == SIZES
    assert len(SIZES) == 51


@pytest.mark.parametrize(("num_rows", "bucket"), GOLDEN["graph_bucket"]["value"].items())
def test_graph_bucket(num_rows: str, bucket: int | None) -> None:
    assert graph_bucket(int(num_rows), SIZES) == bucket


@pytest.mark.parametrize("num_rows", [13, 300])
def test_pad_rows(num_rows: int) -> None:
    assert pad_rows(num_rows, SIZES) == GOLDEN[f"pad_rows_{num_rows}"]["value"]


def test_no_padding_without_a_full_graph() -> None:
    assert pad_rows(513, SIZES) == 0


@pytest.mark.parametrize(("max_num_seqs", "largest"), [(1, 2), (16, 32), (100, 200), (130, 256), (1024, 512)])
def test_the_largest_size_follows_the_rows(max_num_seqs: int, largest: int) -> None:
    assert capture_sizes(max_num_seqs)[-1] == largest


@given(st.integers(1, 600), st.integers(1, 600))
def test_a_bucket_is_the_smallest_that_holds_the_batch(num_rows: int, max_num_seqs: int) -> None:
    sizes = capture_sizes(max_num_seqs)
    holding = [size for size in sizes if size >= num_rows]
    assert graph_bucket(num_rows, sizes) == (min(holding) if holding else None)
