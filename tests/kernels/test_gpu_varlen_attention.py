"""Attention of rows of any query length over a paged cache beside plain torch in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from callboard.kernels.gpu.attention_twin import attend_plainly
from callboard.kernels.gpu.varlen_attention import QueryTiles, varlen_attention
from callboard.tests.kernels.gpu import DEVICE, relative_error
from callboard.tests.kernels.gpu_caches import PagedCache

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
SMALL = QueryTiles(block_m=16, block_n=16, num_warps=4, num_stages=2)
NUM_PADDING = 3
"""Tokens behind those of the rows."""


def check(query_lens, kv_lens, heads=(4, 2), head_dim=64, dtype=torch.float32, block_size=16, window=None, tiles=SMALL):
    """One launch beside the twin."""
    num_heads, kv_heads = heads
    cache = PagedCache(kv_lens, kv_heads, head_dim, dtype, block_size)
    starts = torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32)
    num_tokens = sum(query_lens) + NUM_PADDING
    # A view whose rows lie further apart, as those of a fused projection do.
    q = torch.randn(num_tokens, num_heads + 1, head_dim, generator=cache.generator).to(DEVICE, dtype)[:, :num_heads]
    out = torch.full((num_tokens, num_heads, head_dim), torch.nan, dtype=dtype, device=DEVICE)
    options = {"block_size": block_size, "scale": head_dim**-0.5, "window": window}
    varlen_attention(
        q, cache.keys, cache.values, cache.block_tables, starts.to(DEVICE), cache.kv_lens, out,
        **options, max_query_len=max(query_lens), tiles=tiles,
    )  # fmt: skip
    expected = attend_plainly(q.cpu().double(), *cache.on_cpu(torch.float64, starts), **options)
    assert out[-NUM_PADDING:].isnan().all()
    assert relative_error(out[:-NUM_PADDING], expected[:-NUM_PADDING]) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_prefill_chunk_draft_and_decode_in_one_batch(dtype):
    check([20, 13, 1, 4, 0], [20, 50, 33, 18, 0], dtype=dtype)


@pytest.mark.parametrize("length", [1, 7, 16, 33])
def test_prefill(length):
    check([length], [length])


@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (16, 1), (6, 2)], ids=str)
def test_groups_of_heads(heads):
    check([9, 1], [25, 12], heads=heads)


@pytest.mark.parametrize("head_dim", [80, 96, 256])
def test_head_sizes(head_dim):
    check([9], [20], heads=(2, 1), head_dim=head_dim, dtype=torch.bfloat16)


@pytest.mark.parametrize("window", [1, 16, 19, 1000])
def test_a_window_hides_what_lies_further_back(window):
    check([21, 1, 3], [21, 40, 34], window=window, heads=(2, 1))


@pytest.mark.parametrize(("block_size", "block_n"), [(8, 32), (32, 16), (64, 64)])
def test_blocks_and_tiles(block_size, block_n):
    check([30, 2], [70, 2], heads=(2, 1), block_size=block_size, tiles=SMALL._replace(block_m=32, block_n=block_n))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [(32, 8), (32, 32), (16, 8)], ids=str)
@pytest.mark.parametrize(
    "lens",
    [([512], [512]), ([2048], [4096]), ([5] * 9, [900] * 9), ([1000, *[1] * 64], [1000, *[576] * 64])],
    ids=["prefill", "chunk", "drafts", "mixed"],
)
def test_sizes_of_models(heads, lens, dtype):
    check(*lens, heads=heads, head_dim=128, dtype=dtype, tiles=None)
