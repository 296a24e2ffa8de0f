"""Attention over the paged cache, of one row's tokens and the query heads that share a key head.

Nothing is gathered into tensors: a decoding token reads its keys where they are; a chunk of a prompt copies 64 keys and
values at a time into a tile that stays in the cache, for up to 128 queries (token and head) at once, with the softmax
carried along (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

import numpy as np

from .attention_tiles import call_tile
from .chunk_tiles import TURNED, maxima, turn_floats, turn_halves
from .compiled import compiled
from .floats import exp, narrow, widen
from .panels import call_product
from .reductions import largest_of, sum_of
from .step_arguments import TILE_KEYS
from .tiles import PANEL

_ZERO, _ONE, _NONE = np.float32(0.0), np.float32(1.0), np.float32(-np.inf)


@compiled
def write_row(place, x):
    """Put float32 x [head_dim] into a place of the cache, float32 or bfloat16 as uint16."""
    for i in range(x.size):
        place[i] = narrow(place[i], x[i])


@compiled
def attend_token(q, kv_head, keys, values, blocks, first, last, scale, scratch, out):
    """One token sees positions first .. last - 1.

    q: float32 [group, head_dim]; keys, values: [num_blocks, kv_heads, block_size, head_dim]; blocks: int32
    [max_blocks]; out: float32 [group * head_dim].
    """
    group, head_dim = q.shape
    block_size, length = keys.shape[2], last - first
    scores, addresses = scratch.scores, scratch.addresses
    score_stride = scores.strides[0]
    kind = 1 if keys.itemsize == 2 else 0
    q_at, scores_at, out_at = q.ctypes.data, scores.ctypes.data, out.ctypes.data
    out[:] = _ZERO
    for is_sum in range(2):
        cache = values if is_sum else keys
        base, block_bytes = cache.ctypes.data + kv_head * cache.strides[1], cache.strides[0]
        position = first
        while position < last:
            block, place = position // block_size, position % block_size
            count = min(block_size - place, last - position)
            at = base + blocks[block] * block_bytes + place * cache.strides[2]
            line = scores_at + 4 * (position - first)
            if position + count < last:
                ahead = base + blocks[block + 1] * block_bytes
            else:
                ahead = values.ctypes.data + blocks[first // block_size] * block_bytes + kv_head * cache.strides[1]
            if is_sum:
                call_tile(
                    addresses[2 + kind], line, score_stride, at, count, head_dim, ahead, out_at, 4 * head_dim, group
                )
            else:
                call_tile(addresses[kind], q_at, q.strides[0], at, count, head_dim, ahead, line, score_stride, group)
            position += count
        if not is_sum:
            for g in range(group):
                _softmax(scores[g, :length], scale)


@compiled
def _softmax(line, scale):
    """In place, of scale times the numbers."""
    largest = largest_of(line.ctypes.data, line.size)
    for i in range(line.size):
        line[i] = exp((line[i] - largest) * scale)
    factor = _ONE / sum_of(line.ctypes.data, line.size)
    for i in range(line.size):
        line[i] *= factor


@compiled
def _load_tile(cache_keys, cache_values, kv_head, blocks, start, count, scratch):
    """Keys and values of positions start .. start + count - 1; what is behind them in the tile stays."""
    block_size, head_dim = cache_keys.shape[2:]
    keys, values = scratch.keys, scratch.values
    stride, key_stride = cache_keys.strides[2], keys.strides[0]
    for j in range(count):
        position = start + j
        value = cache_values[blocks[position // block_size], kv_head, position % block_size]
        for i in range(head_dim):
            values[j, i] = widen(value[i])
    for first in range(0, count, TURNED):
        block, place = blocks[(start + first) // block_size], (start + first) % block_size
        if first + TURNED <= count and place + TURNED <= block_size:
            at, target = cache_keys[block, kv_head, place].ctypes.data, keys.ctypes.data + 4 * first
            if cache_keys.itemsize == 2:
                turn_halves(at, stride, head_dim, target, key_stride)
            else:
                turn_floats(at, stride, head_dim, target, key_stride)
            continue
        for j in range(first, min(first + TURNED, count)):
            position = start + j
            key = cache_keys[blocks[position // block_size], kv_head, position % block_size]
            for i in range(head_dim):
                keys[i, j] = widen(key[i])


@compiled
def _soften(scratch, num_queries, group, position, window, start, count):
    """Scores of a tile to weights; sums and norms of what came before are scaled to the new maximum."""
    weights, sums, norms = scratch.weights, scratch.sums, scratch.norms
    for r in range(num_queries):
        seen = position + r // group + 1 - start
        last = max(0, min(count, seen))
        first = max(0, seen - window) if window else 0
        if first > 0 or last < TILE_KEYS:
            weights[r, :first] = _NONE
            weights[r, last:] = _NONE
    maxima(weights.ctypes.data, weights.strides[0], num_queries, norms.ctypes.data + 8, norms.strides[0])
    for r in range(num_queries):
        line = weights[r]
        largest = max(norms[r, 0], norms[r, 2])
        if largest == _NONE:  # nothing seen yet
            line[:] = _ZERO
            continue
        for j in range(TILE_KEYS):
            line[j] = exp(line[j] - largest)
        if largest != norms[r, 0]:
            factor = exp(norms[r, 0] - largest)  # of nothing so far, if there is nothing
            norms[r, 0] = largest
            norms[r, 1] *= factor
            for i in range(sums.shape[1]):
                sums[r, i] *= factor
        norms[r, 1] += sum_of(line.ctypes.data, TILE_KEYS)


@compiled
def attend_chunk(
    qkv, first_head, group, kv_head, keys, values, blocks, position, num_tokens, window, scale, scratch, out
):
    """`num_tokens` tokens (times group at most TILE_QUERIES) from `position` on; each sees itself and what is before
    it, or the last `window` tokens of that (0: all).

    qkv: float32 [num_tokens, heads, head_dim], of which heads first_head .. + group are meant; out: float32
    [num_tokens, columns], of which columns first_head head_dim .. are written.
    """
    head_dim = qkv.shape[2]
    num_queries = num_tokens * group
    queries, weights, sums, norms = scratch.queries, scratch.weights, scratch.sums, scratch.norms
    for r in range(num_queries):
        for i in range(head_dim):
            queries[r, i] = qkv[r // group, first_head + r % group, i] * scale
            sums[r, i] = _ZERO
        norms[r, 0], norms[r, 1] = _NONE, _ZERO
    product = scratch.addresses[4]
    end = position + num_tokens
    start = max(0, position + 1 - window) // TURNED * TURNED if window else 0
    q_at, k_at, v_at, w_at = (
        queries.ctypes.data,
        scratch.keys.ctypes.data,
        scratch.values.ctypes.data,
        weights.ctypes.data,
    )
    while start < end:
        count = min(TILE_KEYS, end - start)
        num_panels = -(-count // PANEL)
        _load_tile(keys, values, kv_head, blocks, start, count, scratch)
        call_product(product, q_at, 4 * head_dim, k_at, head_dim, w_at, 4 * TILE_KEYS, 0,
                     num_queries << 32 | TILE_KEYS // PANEL << 16 | num_panels)  # fmt: skip
        _soften(scratch, num_queries, group, position, window, start, count)
        call_product(product, w_at, 4 * TILE_KEYS, v_at, count, sums.ctypes.data, 4 * head_dim, 1,
                     num_queries << 32 | head_dim // PANEL << 16 | head_dim // PANEL)  # fmt: skip
        start += count
    for r in range(num_queries):
        factor = _ONE / norms[r, 1]
        column = (first_head + r % group) * head_dim
        for i in range(head_dim):
            out[r // group, column + i] = sums[r, i] * factor
