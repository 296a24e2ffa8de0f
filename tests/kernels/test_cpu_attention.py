"""Attention over the paged cache against softmax(q kᵀ) v in float64, one token and one head at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.kernels.cpu.attention import attend_chunk, attend_token, write_row
from callboard.kernels.cpu.step_arguments import TILE_QUERIES, make_scratch

KV_HEADS, MAX_LEN = 2, 400


def make_cache(length, block_size, head_dim, dtype, seed=0):
    """Keys and values of one row in scattered blocks of a cache full of NaN. Returns (keys, values: float64 [length,
    KV_HEADS, head_dim] as they are stored, both caches, the row's blocks)."""
    rng = np.random.default_rng(seed)
    num_blocks = -(-length // block_size)
    blocks = np.zeros(MAX_LEN // block_size + 1, np.int32)
    blocks[:num_blocks] = rng.permutation(num_blocks + 3)[:num_blocks]
    caches, stored = [], []
    for _ in range(2):
        x = torch.from_numpy(rng.standard_normal((length, KV_HEADS, head_dim)).astype(np.float32))
        kind = torch.bfloat16 if dtype == np.uint16 else torch.float32
        cache = torch.full((num_blocks + 3, KV_HEADS, block_size, head_dim), torch.nan, dtype=kind)
        positions = np.arange(length)
        at = torch.from_numpy(blocks[positions // block_size].astype(np.int64))
        cache[at, :, positions % block_size] = x.to(kind)
        caches.append(cache.view(torch.uint16).numpy() if dtype == np.uint16 else cache.numpy())
        stored.append(x.to(kind).double().numpy())
    return *stored, *caches, blocks


def exact_attention(q, keys, values, first, last, scale):
    """q: [head_dim]; keys, values: [length, head_dim]; sees positions first .. last - 1. float64 [head_dim]."""
    scores = keys[first:last] @ q.astype(np.float64) * scale
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values[first:last]


def check_token(group, head_dim, block_size, dtype, first, last):
    keys, values, key_cache, value_cache, blocks = make_cache(last, block_size, head_dim, dtype, seed=last)
    q = (2 * np.random.default_rng(1).standard_normal((group, head_dim))).astype(np.float32)
    scratch = make_scratch(KV_HEADS * group, KV_HEADS, head_dim, MAX_LEN)
    scale = np.float32(head_dim**-0.5)
    out = np.full(group * head_dim, np.nan, np.float32)
    for kv_head in range(KV_HEADS):
        attend_token(q, kv_head, key_cache, value_cache, blocks, first, last, scale, scratch, out)
        for g in range(group):
            exact = exact_attention(q[g], keys[:, kv_head], values[:, kv_head], first, last, scale)
            np.testing.assert_allclose(out[g * head_dim : (g + 1) * head_dim], exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
def test_a_token_sees_all_before_it(dtype, block_size, head_dim):
    for last in (1, 7, block_size, block_size + 1, 129, MAX_LEN):
        check_token(3, head_dim, block_size, dtype, 0, last)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("group", range(1, 10))
def test_a_token_with_any_number_of_heads(dtype, group):
    check_token(group, 32, 16, dtype, 0, 77)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("first", [1, 15, 16, 17, 98, 99])
def test_a_token_sees_a_window(dtype, first):
    check_token(2, 32, 16, dtype, first, 100)


def check_chunk(group, head_dim, block_size, dtype, position, num_tokens, window=0, offset=0.0):
    """The tokens from `position` on; `offset`: added to all queries, so that scores grow with it."""
    length = position + num_tokens
    keys, values, key_cache, value_cache, blocks = make_cache(length, block_size, head_dim, dtype, seed=length)
    rng = np.random.default_rng(1)
    heads = (KV_HEADS * group + 2 * KV_HEADS, head_dim)
    qkv = (2 * rng.standard_normal((num_tokens, *heads)) + offset).astype(np.float32)
    scratch = make_scratch(KV_HEADS * group, KV_HEADS, head_dim, MAX_LEN)
    for part in scratch[:-1]:
        part.fill(np.nan)  # what another call left there
    scale = np.float32(head_dim**-0.5)
    columns = KV_HEADS * group * head_dim
    out = np.full((num_tokens, columns + 5), np.nan, np.float32)
    for kv_head in range(KV_HEADS):
        attend_chunk(qkv, kv_head * group, group, kv_head, key_cache, value_cache, blocks, position, num_tokens,
                     window, scale, scratch, out)  # fmt: skip
    tolerance = 1e-5 * (1 + abs(offset))
    for t in range(num_tokens):
        last = position + t + 1
        first = max(0, last - window) if window else 0
        for head in range(KV_HEADS * group):
            kv_head = head // group
            exact = exact_attention(qkv[t, head], keys[:, kv_head], values[:, kv_head], first, last, scale)
            np.testing.assert_allclose(out[t, head * head_dim : (head + 1) * head_dim], exact, rtol=0, atol=tolerance)
    assert np.isnan(out[:, columns:]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
def test_chunks(dtype, block_size, head_dim):
    for position, num_tokens in ((0, 2), (0, 42), (61, 5), (64, 42), (127, 3), (203, 41)):
        check_chunk(3, head_dim, block_size, dtype, position, num_tokens)


@pytest.mark.parametrize("group", range(1, 10))
def test_a_chunk_with_any_number_of_heads(group):
    """As many tokens as a tile of queries holds."""
    check_chunk(group, 32, 16, np.float32, 50, TILE_QUERIES // group)


@pytest.mark.parametrize("window", [1, 2, 5, 31, 63, 64, 65, 128, 129, 190, 1000])
@pytest.mark.parametrize("position", [0, 3, 63, 150])
def test_chunks_see_a_window(window, position):
    check_chunk(2, 16, 16, np.float32, position, 41, window)


@pytest.mark.parametrize("offset", [30.0, -30.0])
def test_scores_of_hundreds(offset):
    """The softmax is carried from tile to tile, each with a maximum of its own."""
    check_chunk(2, 32, 16, np.float32, 140, 20, offset=offset)


def test_a_chunk_and_single_tokens_agree():
    """Chunk by chunk or token by token: the same numbers but for the order of sums."""
    group, head_dim, length = 3, 64, 100
    _, _, key_cache, value_cache, blocks = make_cache(length, 16, head_dim, np.float32)
    qkv = np.random.default_rng(2).standard_normal((length, 3 * group, head_dim)).astype(np.float32)
    scratch, scale = make_scratch(KV_HEADS * group, KV_HEADS, head_dim, MAX_LEN), np.float32(0.125)
    out = np.zeros((length, 2 * group * head_dim), np.float32)
    for first in range(0, length, 40):
        tokens = qkv[first : first + 40]
        attend_chunk(tokens, group, group, 1, key_cache, value_cache, blocks, first, len(tokens), 0, scale, scratch,
                     out[first : first + 40])  # fmt: skip
    alone = np.zeros(group * head_dim, np.float32)
    for t in range(length):
        attend_token(qkv[t, group : 2 * group], 1, key_cache, value_cache, blocks, 0, t + 1, scale, scratch, alone)
        np.testing.assert_allclose(out[t, group * head_dim :], alone, rtol=0, atol=2e-6)


def test_written_rows():
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    place = np.zeros(64, np.float32)
    write_row(place, x)
    assert np.array_equal(place, x)
    half = np.zeros(64, np.uint16)
    write_row(half, x)
    assert np.array_equal(half.view(np.int16), torch.from_numpy(x).bfloat16().view(torch.int16).numpy())
