"""Each form of paged attention against softmax(q k^T) v in float64, one row and one head at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.kernels.kv_write import write_kv
from callboard.kernels.paged_attention import SlotIndex, attend_causal, attend_gathered, attend_indexed

KV_HEADS, HEAD_DIM, GROUP = 3, 16, 3
HEADS = KV_HEADS * GROUP


def reference(q, keys, values, num_seen):
    """q: [l, heads, d]; keys, values: [t, kv_heads, d]; query i sees num_seen[i] keys. float64 [l, heads, d]."""
    q, keys, values = (x.double().numpy() for x in (q, keys, values))
    out = np.empty(q.shape)
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = keys[: num_seen[i], h // GROUP] @ q[i, h] / np.sqrt(q.shape[2])
            weights = np.exp(scores - scores.max())
            out[i, h] = weights / weights.sum() @ values[: num_seen[i], h // GROUP]
    return out


def make_cache(kv_lens, dtype=torch.float32, block_size=16):
    """Rows written to scattered blocks of a cache full of NaN. Returns (keys, values by row, caches, slots [b, t])."""
    generator = torch.Generator().manual_seed(len(kv_lens))
    num_blocks = sum(-(-n // block_size) for n in kv_lens) + 2
    order = iter(torch.randperm(num_blocks, generator=generator).tolist())
    caches = [torch.full((num_blocks * block_size, KV_HEADS, HEAD_DIM), torch.nan, dtype=dtype) for _ in range(2)]
    rows, slots = [], torch.empty(len(kv_lens), max(kv_lens), dtype=torch.int64)
    for i, n in enumerate(kv_lens):
        blocks = torch.tensor([next(order) for _ in range(-(-n // block_size))])
        positions = torch.arange(n)
        row_slots = blocks[positions // block_size] * block_size + positions % block_size
        k, v = (torch.randn(n, KV_HEADS, HEAD_DIM, generator=generator).to(dtype) for _ in range(2))
        write_kv(*caches, k, v, row_slots)
        rows.append((k, v))
        slots[i] = row_slots[positions.new_tensor(range(max(kv_lens))).clamp(max=n - 1)]
    return rows, caches, slots


def additive(is_seen, dtype):
    return torch.zeros(is_seen.shape, dtype=dtype).masked_fill(~is_seen, -torch.inf)


@pytest.mark.parametrize("kv_lens", [[1], [7], [1023], [4096], [5, 1, 33, 1023], [16, 16]])
@pytest.mark.parametrize("form", ["gathered", "indexed", "gathered_bfloat16"])
def test_one_query_token_a_row(kv_lens, form):
    dtype = torch.bfloat16 if form == "gathered_bfloat16" else torch.float32
    rows, caches, slots = make_cache(kv_lens, dtype)
    q = torch.randn(len(kv_lens), HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(1)).to(dtype)
    lens = torch.tensor(kv_lens)
    mask = additive(torch.arange(max(kv_lens)) < lens[:, None], dtype) if len(set(kv_lens)) > 1 else None
    if form == "indexed":
        in_rows = None if mask is None else mask[:, None]
        index = SlotIndex(slots, HEADS, KV_HEADS, caches[0].shape[0], in_rows)
        out = attend_indexed(q, *caches, index)
    else:
        out = attend_gathered(q[:, None], *caches, slots, None if mask is None else mask[:, None, None])[:, 0]
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    for i, (k, v) in enumerate(rows):
        np.testing.assert_allclose(out[i : i + 1].double(), reference(q[i : i + 1], k, v, [kv_lens[i]]), atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_behind_cached_tokens(dtype):
    starts, lengths = [20, 3, 100], [7, 5, 1]
    kv_lens = [s + n for s, n in zip(starts, lengths, strict=True)]
    rows, caches, slots = make_cache(kv_lens, dtype)
    q = torch.randn(3, 7, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(2)).to(dtype)
    last_seen = torch.tensor(starts)[:, None] + torch.minimum(torch.arange(7), torch.tensor(lengths)[:, None] - 1)
    mask = additive(torch.arange(max(kv_lens)) <= last_seen[:, :, None], dtype)[:, None]
    out = attend_gathered(q, *caches, slots, mask)
    assert not out.isnan().any()
    for i, (k, v) in enumerate(rows):
        n = lengths[i]
        expected = reference(q[i, :n], k, v, [starts[i] + j + 1 for j in range(n)])
        np.testing.assert_allclose(out[i, :n].double(), expected, atol=2e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("lengths", [[1], [7], [1023], [3, 12, 5]])
def test_causal(lengths):
    generator = torch.Generator().manual_seed(3)
    b, longest = len(lengths), max(lengths)
    q = torch.randn(b, longest, HEADS, HEAD_DIM, generator=generator)
    k, v = (torch.randn(b, longest, KV_HEADS, HEAD_DIM, generator=generator) for _ in range(2))
    out = attend_causal(q, k, v)
    for i, n in enumerate(lengths):
        some = sorted({0, n // 2, n - 1})
        expected = reference(q[i, some], k[i], v[i], [j + 1 for j in some])
        np.testing.assert_allclose(out[i, some].double(), expected, atol=2e-6)


def test_strided_queries_and_values():
    """q, k and v of one fused projection are views with a stride."""
    n = 9
    fused = torch.randn(n, (HEADS + 2 * KV_HEADS) * HEAD_DIM, generator=torch.Generator().manual_seed(4))
    q, k, v = fused.split([HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM], dim=1)
    q, k, v = q.unflatten(1, (HEADS, -1)), k.unflatten(1, (KV_HEADS, -1)), v.unflatten(1, (KV_HEADS, -1))
    caches = [torch.full((32, KV_HEADS, HEAD_DIM), torch.nan) for _ in range(2)]
    slots = torch.arange(20, 20 + n)
    write_kv(*caches, k, v, slots)
    expected = reference(q[-1:], k, v, [n])
    np.testing.assert_allclose(attend_gathered(q[None, -1:], *caches, slots[None], None)[0], expected, atol=2e-6)
    index = SlotIndex(slots[None], HEADS, KV_HEADS, 32, None)
    np.testing.assert_allclose(attend_indexed(q[-1:], *caches, index), expected, atol=2e-6)


def test_write_touches_its_slots_only():
    caches = [torch.zeros(10, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16) for _ in range(2)]
    k, v = torch.ones(2, KV_HEADS, HEAD_DIM), torch.full((2, KV_HEADS, HEAD_DIM), 2.0)
    write_kv(*caches, k, v, torch.tensor([7, 3]))
    for cache, value in zip(caches, (1.0, 2.0), strict=True):
        assert (cache[[3, 7]] == value).all()
        assert (cache[[0, 1, 2, 4, 5, 6, 8, 9]] == 0).all()
