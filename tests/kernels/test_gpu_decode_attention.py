"""Decode attention over a paged cache beside plain torch in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from callboard.kernels.gpu.attention_twin import attend_plainly
from callboard.kernels.gpu.decode_attention import DecodeTiles, DecodeWorkspace, decode_attention
from callboard.tests.kernels.gpu import DEVICE, relative_error
from callboard.tests.kernels.gpu_caches import PagedCache

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
SMALL = DecodeTiles(block_n=16, num_warps=4, num_stages=2, programs_per_sm=1, min_tiles=1)


def check(
    kv_lens,
    heads=(4, 2),
    head_dim=64,
    dtype=torch.float32,
    block_size=16,
    window=None,
    query_lens=None,
    tiles=SMALL,
    num_launches=1,
):
    """Launches beside the twin. Returns what the last wrote."""
    num_heads, kv_heads = heads
    cache = PagedCache(kv_lens, kv_heads, head_dim, dtype, block_size)
    starts = torch.tensor([0, *itertools.accumulate(query_lens or [1] * len(kv_lens))], dtype=torch.int32)
    num_tokens, longest = int(starts[-1]), max(query_lens or [1])
    # A view whose rows lie further apart, as those of a fused projection do.
    q = torch.randn(num_tokens, num_heads + 1, head_dim, generator=cache.generator).to(DEVICE, dtype)[:, :num_heads]
    out = torch.empty(num_tokens, num_heads, head_dim, dtype=dtype, device=DEVICE)
    workspace = DecodeWorkspace(DEVICE, num_heads, kv_heads, head_dim, longest)
    for buffer in (workspace.sums, workspace.scales):
        buffer.fill_(torch.nan)
    options = {"block_size": block_size, "scale": head_dim**-0.5, "window": window}
    for _ in range(num_launches):
        out.fill_(torch.nan)
        decode_attention(
            q, cache.keys, cache.values, cache.block_tables, cache.kv_lens, out,
            **options, workspace=workspace, query_starts=starts.to(DEVICE) if query_lens else None,
            max_query_len=longest, tiles=tiles,
        )  # fmt: skip
    expected = attend_plainly(q.cpu().double(), *cache.on_cpu(torch.float64, starts), **options)
    is_padding = (cache.kv_lens.cpu() == 0).repeat_interleave(starts.diff())
    assert out.isnan().flatten(1).all(1).cpu().equal(is_padding)  # what is there stays
    assert relative_error(out.cpu()[~is_padding], expected[~is_padding]) < TOLERANCE[dtype]
    assert not workspace.counters.any()  # ready for the next
    return out


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("kv_lens", [[1], [7], [60, 1, 0, 33], [0, 0], [16, 32, 0]], ids=str)
def test_rows_of_any_length(kv_lens, dtype):
    check(kv_lens, dtype=dtype)


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (5, 1), (16, 1), (6, 3)], ids=str)
def test_groups_of_heads(heads):
    check([40, 5], heads=heads)


@pytest.mark.parametrize("head_dim", [80, 96, 128, 256])
def test_head_sizes(head_dim):
    check([35, 3], head_dim=head_dim, dtype=torch.bfloat16)


@pytest.mark.parametrize("block_size", [8, 32, 128])
def test_block_sizes(block_size):
    check([150, 9], block_size=block_size)


@pytest.mark.parametrize("window", [1, 16, 17, 1000])
def test_a_window_hides_what_lies_further_back(window):
    check([60, 16, 5], window=window)


@pytest.mark.parametrize(
    ("query_lens", "window"), [([2, 2, 2], None), ([5, 5, 5], None), ([4, 4, 4], 3), ([1, 3, 2], None), ([6, 1, 4], 5)]
)
def test_several_query_tokens_a_row(query_lens, window):
    check([60, query_lens[1], 17], query_lens=query_lens, window=window)


def test_rows_of_padding_among_rows_of_several_tokens():
    check([60, 0, 17, 0], query_lens=[3, 1, 2, 1])


@pytest.mark.parametrize("block_n", [16, 32, 64])
@pytest.mark.parametrize("min_tiles", [1, 3])
def test_the_cut_of_the_work_does_not_matter(block_n, min_tiles):
    check([150, 3, 37], tiles=SMALL._replace(block_n=block_n, min_tiles=min_tiles))


def test_a_workspace_serves_launch_after_launch():
    check([90, 40], num_launches=3)


def test_padding_of_a_bucket_changes_nothing():
    """A launch for 4 rows with 2 of them empty cuts the work as one for 2 rows does: not one bit is different."""
    assert check([90, 40, 0, 0])[:2].equal(check([90, 40]))


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(32, 8), (32, 32), (16, 8)], ids=str)
@pytest.mark.parametrize("kv_lens", [[576], [32768], [1023] * 7, [576] * 256, [*range(1, 4096, 61)]], ids=len)
def test_sizes_of_models(heads, kv_lens):
    check(kv_lens, heads=heads, head_dim=128, dtype=torch.bfloat16, tiles=None, num_launches=2)
