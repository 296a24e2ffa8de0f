"""Attention of rows with any number of query tokens each: prefill, chunks of it, drafts, and all of these in one batch.

    out[j, h] = sum_t softmax_t(scale * q[j, h] · k[t, h // group]) · v[t, h // group],   t <= position of token j

The query tokens of a row are its last ones, and its keys and values, theirs included, are in the paged cache. A program
has a tile of BLOCK_M queries: a few tokens of one row, with all heads that share a key-value head (Ainslie et al. 2023,
GQA), and goes over the keys that one of them sees, with a running maximum (Milakov and Gimelshein 2018,
arXiv:1805.02867; tiled as in FlashAttention-2, Dao 2023, arXiv:2307.08691). Only the last tiles of keys need a mask.

The grid depends on shapes only: num_tokens / tokens of a tile + rows is enough tiles wherever rows begin, and those
left over end at once. dtypes: bfloat16, float16, float32; sums in float32. Tolerance against the twin in float64,
||error|| / ||out||: 1e-5 in float32, 8e-3 in bfloat16.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import has_dependent_launch

LOG2_E = 1.4426950408889634


class QueryTiles(NamedTuple):
    """How a launch is cut. Chosen by `choose_tiles`; a benchmark may try others."""

    block_m: int
    """Queries of a tile: tokens times heads of a group."""
    block_n: int
    """Keys of a tile."""
    num_warps: int
    num_stages: int


def choose_tiles(max_queries: int, head_dim: int, dtype: torch.dtype) -> QueryTiles:
    """max_queries: of the longest row, tokens times heads of a group."""
    if dtype == torch.float32 or head_dim > 128:
        return QueryTiles(block_m=16 if max_queries <= 16 else 32, block_n=32, num_warps=4, num_stages=2)
    if max_queries <= 64:
        block_m = max(16, triton.next_power_of_2(max_queries))
        return QueryTiles(block_m=block_m, block_n=64, num_warps=4, num_stages=3)
    return QueryTiles(block_m=128, block_n=64, num_warps=8, num_stages=3)


def varlen_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    kv_lens: Tensor,
    out: Tensor,
    *,
    block_size: int,
    scale: float,
    window: int | None,
    max_query_len: int,
    tiles: QueryTiles | None = None,
) -> None:
    """Write `out` for the tokens of rows; what it has behind query_starts[n] stays.

    q, out: [t, num_heads, head_dim], head_dim dense; caches: [num_slots, kv_heads, head_dim], of q's dtype and of equal
    strides; block_tables: int32 [n, max_blocks], rows may lie further apart; query_starts: int32 [n + 1], ascending
    from 0, at most t; kv_lens: int32 [n], with the step's own keys. Token j sees the keys up to itself, and with a
    window only the last `window` of them. scale > 0; block_size: a power of two. max_query_len: no row has more query
    tokens. Launches before this one may still write q and the caches; query_starts and kv_lens are read before the wait
    for them (see `has_dependent_launch`).
    """
    num_tokens, num_heads, head_dim = q.shape
    kv_heads, n = key_cache.shape[1], kv_lens.shape[0]
    assert num_heads % kv_heads == 0 and block_size & (block_size - 1) == 0 and query_starts.shape[0] == n + 1
    assert q.stride(2) == out.stride(2) == key_cache.stride(2) == block_tables.stride(1) == 1
    assert key_cache.stride() == value_cache.stride() and key_cache.dtype == value_cache.dtype == q.dtype
    group = num_heads // kv_heads
    tiles = tiles or choose_tiles(max_query_len * group, head_dim, q.dtype)
    block_m = max(tiles.block_m, triton.next_power_of_2(group))
    pdl = has_dependent_launch(q.device)
    _attend[(num_tokens // (block_m // group) + n, kv_heads)](
        q,
        key_cache,
        value_cache,
        block_tables,
        query_starts,
        kv_lens,
        out,
        n,
        scale * LOG2_E,
        window or 0,
        q.stride(0),
        q.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        block_tables.stride(0),
        out.stride(0),
        out.stride(1),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=block_size,
        BLOCK_M=block_m,
        BLOCK_N=tiles.block_n,
        BATCH_ROWS=max(32, triton.next_power_of_2(n)),
        HAS_WINDOW=window is not None,
        NUM_STAGES=tiles.num_stages,
        PDL=pdl,
        num_warps=tiles.num_warps,
        launch_pdl=pdl,
    )


@triton.jit
def _attend_tiles(
    queries,
    m,
    total,
    acc,
    keys_of_head,
    values_of_head,
    table,
    query_positions,
    kv_len,
    first_tile,
    end_tile,
    scale_log2,
    window,
    slot_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_MASKED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Bring the keys of tiles first_tile to end_tile - 1 into the running sums."""
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    # Block ids come one tile ahead, in registers: a load that waits for a load would not be pipelined as far.
    positions = first_tile * BLOCK_N + n
    block = tl.load(table + positions // BLOCK_SIZE, mask=positions < kv_len, other=0)
    for index in tl.range(first_tile, end_tile, num_stages=NUM_STAGES):
        positions = index * BLOCK_N + n
        slots = block.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        block = tl.load(table + (positions + BLOCK_N) // BLOCK_SIZE, mask=positions + BLOCK_N < kv_len, other=0)
        is_element = (positions < kv_len)[:, None]
        if HEAD_DIM != BLOCK_D:
            is_element = is_element & (d < HEAD_DIM)[None, :]
        offsets = slots[:, None] * slot_stride
        if IS_MASKED or HEAD_DIM != BLOCK_D:
            keys = tl.load(keys_of_head + offsets, mask=is_element, other=0.0)
        else:
            keys = tl.load(keys_of_head + offsets)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if IS_MASKED:
            is_seen = positions[None, :] <= query_positions[:, None]
            if HAS_WINDOW:
                is_seen = is_seen & (positions[None, :] > query_positions[:, None] - window)
            scores = tl.where(is_seen, scores, float("-inf"))
        m_new = tl.maximum(m, tl.max(scores, 1) * scale_log2)
        base = m_new
        if HAS_WINDOW:
            base = tl.where(m_new == float("-inf"), 0.0, m_new)  # a token may see no key of this tile
        weights = tl.exp2(scores * scale_log2 - base[:, None])
        old = tl.exp2(m - base)
        total = total * old + tl.sum(weights, 1)
        if IS_MASKED or HEAD_DIM != BLOCK_D:
            values = tl.load(values_of_head + offsets, mask=is_element, other=0.0)
        else:
            values = tl.load(values_of_head + offsets)
        acc = tl.dot(weights.to(values.dtype), values, acc * old[:, None], input_precision="ieee")
        m = m_new
    return m, total, acc


@triton.jit(do_not_specialize=["num_rows", "window", "table_stride"])  # a batch size more is no compilation more
def _attend(
    q,
    key_cache,
    value_cache,
    block_tables,
    query_starts,
    kv_lens,
    out,
    num_rows,
    scale_log2,
    window,
    q_token_stride,
    q_head_stride,
    slot_stride,
    kv_head_stride,
    table_stride,
    out_token_stride,
    out_head_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BATCH_ROWS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    TILE_TOKENS: tl.constexpr = BLOCK_M // GROUP
    # Row i has the tiles from query_starts[i] // TILE_TOKENS + i on: enough, whatever the rests are.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # late tokens see most keys: their tiles go first
    kv_head = tl.program_id(1)
    rows = tl.arange(0, BATCH_ROWS)
    row_tiles = tl.load(query_starts + rows, mask=rows < num_rows, other=0) // TILE_TOKENS + rows
    row = tl.sum(((row_tiles <= tile) & (rows < num_rows)).to(tl.int32), 0) - 1
    begin = tl.load(query_starts + row)
    query_len = tl.load(query_starts + row + 1) - begin
    first_token = (tile - (begin // TILE_TOKENS + row)) * TILE_TOKENS
    kv_len = tl.load(kv_lens + row)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if (first_token < query_len) & (kv_len > 0):
        r = tl.arange(0, BLOCK_M)  # query token, then head of the group
        d = tl.arange(0, BLOCK_D)
        token = first_token + r // GROUP
        heads = kv_head * GROUP + r % GROUP
        is_query = ((r < TILE_TOKENS * GROUP) & (token < query_len))[:, None] & (d < HEAD_DIM)[None, :]
        tokens = (begin + token).to(tl.int64)
        q_offsets = (tokens * q_token_stride + heads * q_head_stride)[:, None] + d[None, :]
        queries = tl.load(q + q_offsets, mask=is_query, other=0.0)

        first_position = kv_len - query_len + first_token
        query_positions = tl.minimum(kv_len - query_len + token, kv_len - 1)
        end_tile = tl.cdiv(tl.minimum(first_position + TILE_TOKENS, kv_len), BLOCK_N)
        first_tile = first_position * 0
        mask_tile = (first_position + 1) // BLOCK_N  # every token sees all keys of the tiles before
        if HAS_WINDOW:
            first_tile = tl.maximum(first_position + 1 - window, 0) // BLOCK_N
            mask_tile = first_tile
        table = block_tables + row.to(tl.int64) * table_stride
        keys_of_head = key_cache + kv_head * kv_head_stride + d[None, :]
        values_of_head = value_cache + kv_head * kv_head_stride + d[None, :]

        m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        if not HAS_WINDOW:
            m, total, acc = _attend_tiles(
                queries, m, total, acc, keys_of_head, values_of_head, table, query_positions, kv_len, first_tile,
                mask_tile, scale_log2, window, slot_stride, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, HAS_WINDOW, False,
                NUM_STAGES,
            )  # fmt: skip
        m, total, acc = _attend_tiles(
            queries, m, total, acc, keys_of_head, values_of_head, table, query_positions, kv_len, mask_tile,
            end_tile, scale_log2, window, slot_stride, HEAD_DIM, BLOCK_D, BLOCK_SIZE, BLOCK_N, HAS_WINDOW, True,
            NUM_STAGES,
        )  # fmt: skip
        out_offsets = (tokens * out_token_stride + heads * out_head_stride)[:, None] + d[None, :]
        tl.store(out + out_offsets, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)
