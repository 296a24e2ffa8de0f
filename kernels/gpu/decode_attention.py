"""Attention of one query token a row, or of a few, over its keys and values in the paged cache; memory-bound.

    out[i, h] = sum_t softmax_t(scale * q[i, h] · k[t, h // group]) · v[t, h // group],   t < kv_lens[i]

How the work is shared out. A row's keys come in tiles of BLOCK_N; the tiles of all rows and key-value heads are
numbered through, and each program takes an equal run of numbers, whatever the lengths of the rows are. Where a run
begins or ends inside one (row, head), what it has is a share of the result; the program that is the last to bring one
for that (row, head) adds them up (`attention_shares.py`), in order of the keys, so that a result does not depend on who
was last. The heads that share a key-value head are one tile of the dot product
(Ainslie et al. 2023, GQA): keys and values are read once.

Grid and addresses depend on shapes only; lengths are read on the device, so that a CUDA graph can hold the launch.
dtypes: bfloat16, float16, float32; sums in float32. Tolerance against the twin in float64, ||error|| / ||out||: 1e-5 in
float32, 8e-3 in bfloat16 (the weights are rounded to bfloat16 before they meet the values).
Sources: sums split over the keys as in Flash-Decoding (Dao et al. 2023), work cut into equal runs as in Stream-K (Osama
et al. 2023, arXiv:2301.03598).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention_shares import add_shares
from .launch import has_dependent_launch, num_sms

LOG2_E = 1.4426950408889634


class DecodeTiles(NamedTuple):
    """How a launch is cut. Chosen by `choose_tiles`; a benchmark may try others."""

    block_n: int
    """Keys of a tile."""
    num_warps: int
    num_stages: int
    """Tiles on their way from memory to a program at once."""
    programs_per_sm: int
    min_tiles: int
    """No run is shorter, or only by what does not divide."""
    fetch_tiles: int = 1
    """Tiles that a program asks for while the launch before is running."""


def choose_tiles(num_kv_heads_in_batch: int, head_dim: int, element_bytes: int) -> DecodeTiles:
    """num_kv_heads_in_batch: rows times key-value heads.

    The best of 20 cuts on one H200 (2026-11-30, head_dim 128, bfloat16, 576 keys a row, 8 key-value heads; what reading
    them takes at the copy bandwidth in brackets): 32 rows 23.8 us (17.7), 64 rows 41 (35), 128 rows 84 (71), 256 rows
    154 (142).
    """
    if head_dim * element_bytes > 256:
        return DecodeTiles(block_n=32, num_warps=4, num_stages=3, programs_per_sm=2, min_tiles=1)
    if num_kv_heads_in_batch >= 1024:
        return DecodeTiles(block_n=64, num_warps=4, num_stages=3, programs_per_sm=3, min_tiles=1)
    if num_kv_heads_in_batch >= 512:
        return DecodeTiles(block_n=32, num_warps=4, num_stages=3, programs_per_sm=4, min_tiles=1)
    return DecodeTiles(block_n=64, num_warps=4, num_stages=4, programs_per_sm=2, min_tiles=1)


MAX_PROGRAMS_PER_SM = 4


class DecodeWorkspace:
    """Where programs leave partial sums. One serves every layer and every batch size of a stream: launches that share
    it run one after another. `counters` is zero between launches."""

    def __init__(
        self, device: torch.device, num_heads: int, kv_heads: int, head_dim: int, max_query_len: int = 1
    ) -> None:
        """max_query_len: of a row; every length between two powers of two has one workspace."""
        self.max_programs = MAX_PROGRAMS_PER_SM * num_sms(device)
        rows = triton.next_power_of_2(num_heads // kv_heads * triton.next_power_of_2(max_query_len))
        self.sums = torch.empty(2 * self.max_programs, rows, head_dim, dtype=torch.float32, device=device)
        self.scales = torch.empty(2 * self.max_programs, rows, dtype=torch.float32, device=device)
        self.counters = torch.zeros(self.max_programs, dtype=torch.int32, device=device)


def decode_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    kv_lens: Tensor,
    out: Tensor,
    *,
    block_size: int,
    scale: float,
    window: int | None,
    workspace: DecodeWorkspace,
    query_starts: Tensor | None = None,
    max_query_len: int = 1,
    tiles: DecodeTiles | None = None,
) -> None:
    """Write `out`; rows with kv_len 0 are padding, and what `out` has there stays.

    q, out: [t, num_heads, head_dim], head_dim dense; caches: [num_slots, kv_heads, head_dim], of q's dtype and of equal
    strides; block_tables: int32 [n, max_blocks], rows may lie further apart; kv_lens: int32 [n], with the step's own
    keys, which are in the cache; query_starts: int32 [n + 1], the first of each row's tokens among the t, of which it
    has `max_query_len` at most (what lies behind the last row is padding); None: each row has one, t = n. A row's query
    tokens are its last; each sees the keys up to itself, and with a window only the last `window` of them. block_size:
    a power of two.
    Launches before this one may still write q and the caches; kv_lens, query_starts and block_tables are read before
    the wait for them (see `has_dependent_launch`).
    """
    num_tokens, num_heads, head_dim = q.shape
    kv_heads, n = key_cache.shape[1], kv_lens.shape[0]
    assert num_heads % kv_heads == 0 and block_size & (block_size - 1) == 0
    assert (num_tokens == n and max_query_len == 1) if query_starts is None else query_starts.shape[0] == n + 1
    assert q.stride(2) == out.stride(2) == key_cache.stride(2) == block_tables.stride(1) == 1
    assert key_cache.stride() == value_cache.stride() and key_cache.dtype == value_cache.dtype == q.dtype
    group = num_heads // kv_heads
    tiles = tiles or choose_tiles(n * kv_heads, head_dim, q.element_size())
    num_programs = num_sms(q.device) * tiles.programs_per_sm
    query_len = triton.next_power_of_2(max_query_len)
    part_rows = triton.next_power_of_2(group * query_len)
    assert num_programs <= workspace.max_programs and workspace.sums.shape[1:] == (part_rows, head_dim)
    block_d = triton.next_power_of_2(head_dim)
    pdl = has_dependent_launch(q.device)
    _attend[(num_programs,)](
        q,
        key_cache,
        value_cache,
        block_tables,
        kv_lens,
        query_starts,
        out,
        workspace.sums,
        workspace.scales,
        workspace.counters,
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
        KV_HEADS=kv_heads,
        GROUP=group,
        HAS_STARTS=query_starts is not None,
        QUERY_LEN=query_len,
        QUERY_ROWS=max(16, part_rows),
        PART_ROWS=part_rows,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_SIZE=block_size,
        BLOCK_N=tiles.block_n,
        MIN_TILES=tiles.min_tiles,
        BATCH_ROWS=max(32, triton.next_power_of_2(n)),
        HAS_WINDOW=window is not None,
        NUM_STAGES=tiles.num_stages,
        PDL=pdl,
        FETCH_TILES=tiles.fetch_tiles,
        LINES=max(1, triton.next_power_of_2(head_dim * q.element_size()) // 128),
        num_warps=tiles.num_warps,
        launch_pdl=pdl,
    )


@triton.jit
def _first_tile(kv_len, window, QUERY_LEN: tl.constexpr, BLOCK_N: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """The first tile with a key that a query token sees."""
    first = kv_len * 0
    if HAS_WINDOW:
        first = tl.maximum(kv_len - (QUERY_LEN - 1) - window, 0) // BLOCK_N
    return first


@triton.jit
def _locate(
    tile,
    rows,
    lens,
    row_starts,
    row_ends,
    window,
    QUERY_LEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Of a tile: its row, the row's length and first tile, how many tiles a head has there, its head, and that head's
    first number. Behind the last tile the row is none and the length 0."""
    row = tl.sum((row_ends <= tile).to(tl.int32), 0)
    row_start = tl.sum(tl.where(rows == row, row_starts, 0), 0)
    kv_len = tl.sum(tl.where(rows == row, lens, 0), 0)
    first_tile = _first_tile(kv_len, window, QUERY_LEN, BLOCK_N, HAS_WINDOW)
    head_tiles = tl.cdiv(kv_len, BLOCK_N) - first_tile
    kv_head = (tile - row_start) // tl.maximum(head_tiles, 1)
    return row, kv_len, first_tile, head_tiles, kv_head, row_start + kv_head * head_tiles


@triton.jit
def _fetch_to_l2(pointers):
    """Ask for the cache lines behind a tile of pointers; nothing waits for them, and nothing grows stale by it."""
    line = pointers.to(tl.int64)
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [line], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["num_rows", "window", "table_stride"])  # a batch size more is no compilation more
def _attend(
    q,
    key_cache,
    value_cache,
    block_tables,
    kv_lens,
    query_starts,
    out,
    sums,
    scales,
    counters,
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
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    QUERY_LEN: tl.constexpr,
    QUERY_ROWS: tl.constexpr,
    PART_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_TILES: tl.constexpr,
    BATCH_ROWS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL: tl.constexpr,
    FETCH_TILES: tl.constexpr,
    LINES: tl.constexpr,
):
    # Tiles are numbered by row, then by key-value head, then by key.
    rows = tl.arange(0, BATCH_ROWS)
    lens = tl.load(kv_lens + rows, mask=rows < num_rows, other=0)
    num_tiles = tl.cdiv(lens, BLOCK_N) - _first_tile(lens, window, QUERY_LEN, BLOCK_N, HAS_WINDOW)
    row_ends = tl.cumsum(num_tiles, 0) * KV_HEADS
    row_starts = row_ends - num_tiles * KV_HEADS
    all_tiles = tl.max(row_ends, 0).to(tl.int64)
    # As many programs as runs of the longest length need; all, where that would leave more than an eighth idle.
    program = tl.program_id(0)
    most = tl.minimum(tl.num_programs(0), tl.cdiv(all_tiles, MIN_TILES))
    used = tl.cdiv(all_tiles, tl.maximum(tl.cdiv(all_tiles, tl.maximum(most, 1)), 1))
    if used * 9 < most * 8:
        used = most
    used = tl.maximum(used, 1)
    tile = (tl.minimum(program, used) * all_tiles // used).to(tl.int32)
    end = (tl.minimum(program + 1, used) * all_tiles // used).to(tl.int32)

    r = tl.arange(0, QUERY_ROWS)  # query token, then head of the group
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    member = r % GROUP
    row, kv_len, first_tile, head_tiles, kv_head, head_start = _locate(
        tile, rows, lens, row_starts, row_ends, window, QUERY_LEN, BLOCK_N, HAS_WINDOW
    )
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if tile < end:
            lines = tl.arange(0, LINES) * (HEAD_DIM // LINES)
            for ahead in tl.static_range(FETCH_TILES):
                positions = (first_tile + tile - head_start + ahead) * BLOCK_N + n
                is_key = positions < kv_len
                table = block_tables + row.to(tl.int64) * table_stride
                block = tl.load(table + positions // BLOCK_SIZE, mask=is_key, other=0)
                slots = block.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
                offsets = slots[:, None] * slot_stride + kv_head * kv_head_stride + lines[None, :]
                _fetch_to_l2(key_cache + offsets)
                _fetch_to_l2(value_cache + offsets)
        tl.extra.cuda.gdc_wait()

    while tile < end:
        begin_here = tile - head_start
        end_here = tl.minimum(end - head_start, head_tiles)

        first_token, query_len = row, 1
        if HAS_STARTS:
            first_token = tl.load(query_starts + row)
            query_len = tl.load(query_starts + row + 1) - first_token
        token = tl.minimum(r // GROUP, query_len - 1)
        is_query = (r < GROUP * query_len)[:, None] & (d < HEAD_DIM)[None, :]
        tokens = (first_token + token).to(tl.int64)
        heads = kv_head * GROUP + member
        q_offsets = (tokens * q_token_stride + heads * q_head_stride)[:, None] + d[None, :]
        queries = tl.load(q + q_offsets, mask=is_query, other=0.0)
        query_positions = kv_len - query_len + token
        table = block_tables + row.to(tl.int64) * table_stride
        keys_of_head = key_cache + kv_head * kv_head_stride + d[None, :]
        values_of_head = value_cache + kv_head * kv_head_stride + d[None, :]

        m = tl.full((QUERY_ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((QUERY_ROWS,), tl.float32)
        acc = tl.zeros((QUERY_ROWS, BLOCK_D), tl.float32)
        # Block ids come one tile ahead, in registers: a load that waits for a load would not be pipelined as far.
        positions = (first_tile + begin_here) * BLOCK_N + n
        block = tl.load(table + positions // BLOCK_SIZE, mask=positions < kv_len, other=0)
        for index in tl.range(first_tile + begin_here, first_tile + end_here, num_stages=NUM_STAGES):
            positions = index * BLOCK_N + n
            is_key = positions < kv_len
            slots = block.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
            block = tl.load(table + (positions + BLOCK_N) // BLOCK_SIZE, mask=positions + BLOCK_N < kv_len, other=0)
            is_element = is_key[:, None]
            if HEAD_DIM != BLOCK_D:
                is_element = is_element & (d < HEAD_DIM)[None, :]
            offsets = slots[:, None] * slot_stride
            keys = tl.load(keys_of_head + offsets, mask=is_element, other=0.0)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale_log2
            is_seen = positions[None, :] <= query_positions[:, None]
            if HAS_WINDOW:
                is_seen = is_seen & (positions[None, :] > query_positions[:, None] - window)
            scores = tl.where(is_seen, scores, float("-inf"))
            m_new = tl.maximum(m, tl.max(scores, 1))
            base = tl.where(m_new == float("-inf"), 0.0, m_new)  # a token may see no key of this tile
            weights = tl.exp2(scores - base[:, None])
            old = tl.exp2(m - base)
            total = total * old + tl.sum(weights, 1)
            values = tl.load(values_of_head + offsets, mask=is_element, other=0.0)
            acc = tl.dot(weights.to(values.dtype), values, acc * old[:, None], input_precision="ieee")
            m = m_new

        total = tl.where(total == 0.0, 1.0, total)  # of a token that sees no key of this run, and m is -inf
        average = acc / total[:, None]
        if (begin_here == 0) & (end_here == head_tiles):
            out_offsets = (tokens * out_token_stride + heads * out_head_stride)[:, None] + d[None, :]
            tl.store(out + out_offsets, average.to(out.dtype.element_ty), mask=is_query)
        else:
            # Of a program's two places for its share the second is for a (row, head) that begins in its run.
            first_program = (((head_start + 1) * used - 1) // all_tiles).to(tl.int32)
            last_program = (((head_start + head_tiles) * used - 1) // all_tiles).to(tl.int32)
            lines = (program * 2 + (program == first_program).to(tl.int32)) * PART_ROWS + r
            tl.store(scales + lines, m + tl.log2(total), mask=r < GROUP * query_len)
            tl.store(sums + lines[:, None] * HEAD_DIM + d[None, :], average, mask=is_query)
            # At most one (row, head) begins in a run and goes on behind it, so a counter for each program is enough.
            tl.debug_barrier()  # ORDER: all threads' shares, then the count
            arrived = tl.atomic_add(counters + first_program, 1, sem="acq_rel", scope="gpu")
            if arrived == last_program - first_program:
                tl.store(counters + first_program, 0)
                e = tl.arange(0, PART_ROWS * BLOCK_D)
                r_out, d_out = e // BLOCK_D, e % BLOCK_D
                is_element = (r_out < GROUP * query_len) & (d_out < HEAD_DIM)
                whole = add_shares(
                    sums, scales, first_program, last_program, e, is_element, HEAD_DIM, BLOCK_D, PART_ROWS
                )
                tokens_out = (first_token + r_out // GROUP).to(tl.int64)
                heads_out = kv_head * GROUP + r_out % GROUP
                out_offsets = tokens_out * out_token_stride + heads_out * out_head_stride + d_out
                tl.store(out + out_offsets, whole.to(out.dtype.element_ty), mask=is_element)
        tile = head_start + end_here
        row, kv_len, first_tile, head_tiles, kv_head, head_start = _locate(
            tile, rows, lens, row_starts, row_ends, window, QUERY_LEN, BLOCK_N, HAS_WINDOW
        )
