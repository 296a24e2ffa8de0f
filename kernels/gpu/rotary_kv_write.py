"""What lies between the projection to queries, keys and values and attention, in one launch.

Queries and keys are normalised head by head where a model does so, x / sqrt(mean(x²) + eps) * weight (Zhang and
Sennrich 2019, arXiv:1910.07467), and turned by their position: x * cos + roll(x, head_dim / 2) * sin (Su et al. 2021,
arXiv:2104.09864). Turned queries go to `q_out`, turned keys and values to their slots of the paged cache.

dtypes: bfloat16, float16 or float32, arithmetic in float32, rounded once at the end. Tolerance against the twin in
float64, ||error|| / ||out||: 1e-6 in float32, 5e-3 in bfloat16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import has_dependent_launch

HEADS_PER_PROGRAM = 8


def rotary_kv_write(
    qkv: Tensor,
    positions: Tensor,
    rotary_table: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_out: Tensor,
    *,
    norm_weight: Tensor | None,
    eps: float,
) -> None:
    """Write `q_out` and slots of the caches.

    qkv: [t, (num_heads + 2 * kv_heads) * head_dim], rows may lie further apart; positions: int32 or int64 [t];
    rotary_table: [max_len, 2, 1, head_dim], cosines, and sines with the sign that a half turn wants; slot_mapping:
    int64 [t], -1 for padding, of which nothing is written to the caches; caches: [num_slots, kv_heads, head_dim], of
    equal strides; q_out: [t, num_heads, head_dim]; norm_weight: float32 [num_heads + kv_heads, head_dim] or None.
    Launches before this one may still write qkv; all other inputs are read before the wait for them (see
    `has_dependent_launch`).
    """
    num_tokens, num_heads, head_dim = q_out.shape
    kv_heads = key_cache.shape[1]
    num_all = num_heads + 2 * kv_heads
    assert qkv.shape == (num_tokens, num_all * head_dim) and qkv.stride(1) == 1 and head_dim % 2 == 0
    assert q_out.stride(2) == key_cache.stride(2) == 1 and key_cache.stride() == value_cache.stride()
    assert rotary_table.shape[1:] == (2, 1, head_dim) and rotary_table.is_contiguous()
    assert norm_weight is None or (
        norm_weight.shape == (num_heads + kv_heads, head_dim) and norm_weight.is_contiguous()
    )
    pdl = has_dependent_launch(qkv.device)
    _rotate_and_write[(num_tokens, triton.cdiv(num_all, HEADS_PER_PROGRAM))](
        qkv,
        positions,
        rotary_table,
        slot_mapping,
        key_cache,
        value_cache,
        q_out,
        norm_weight,
        eps,
        qkv.stride(0),
        q_out.stride(0),
        q_out.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        NUM_HEADS=num_heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        BLOCK_HEADS=HEADS_PER_PROGRAM,
        HAS_NORM=norm_weight is not None,
        PDL=pdl,
        num_warps=2,
        launch_pdl=pdl,
    )


@triton.jit
def _rotate_and_write(
    qkv,
    positions,
    rotary_table,
    slot_mapping,
    key_cache,
    value_cache,
    q_out,
    norm_weight,
    eps,
    qkv_stride,
    q_token_stride,
    q_head_stride,
    slot_stride,
    kv_head_stride,
    NUM_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    d = tl.arange(0, BLOCK_HALF)
    is_lane = d < HALF
    is_turned = (head < NUM_HEADS + KV_HEADS)[:, None] & is_lane[None, :]
    is_value = (head >= NUM_HEADS + KV_HEADS) & (head < NUM_HEADS + 2 * KV_HEADS)
    slot = tl.load(slot_mapping + token)
    turn = rotary_table + tl.load(positions + token).to(tl.int64) * (4 * HALF) + d
    # cos and sin of the first and of the second half; values are turned by nothing.
    cos_1 = tl.load(turn, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    cos_2 = tl.load(turn + HALF, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    sin_1 = tl.load(turn + 2 * HALF, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    sin_2 = tl.load(turn + 3 * HALF, mask=is_lane, other=0.0).to(tl.float32)[None, :]
    if HAS_NORM:
        weights = norm_weight + head[:, None] * (2 * HALF) + d[None, :]
        weight_1 = tl.load(weights, mask=is_turned, other=0.0)
        weight_2 = tl.load(weights + HALF, mask=is_turned, other=0.0)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()

    source = qkv + token * qkv_stride + head[:, None] * (2 * HALF) + d[None, :]
    is_read = (head < NUM_HEADS + 2 * KV_HEADS)[:, None] & is_lane[None, :]
    raw_1 = tl.load(source, mask=is_read, other=0.0).to(tl.float32)
    raw_2 = tl.load(source + HALF, mask=is_read, other=0.0).to(tl.float32)
    x_1, x_2 = raw_1, raw_2
    if HAS_NORM:
        inverse = tl.rsqrt(tl.sum(x_1 * x_1 + x_2 * x_2, 1) / (2 * HALF) + eps)[:, None]
        x_1, x_2 = x_1 * inverse * weight_1, x_2 * inverse * weight_2
    out_1 = tl.where(is_turned, x_1 * cos_1 + x_2 * sin_1, raw_1)
    out_2 = tl.where(is_turned, x_2 * cos_2 + x_1 * sin_2, raw_2)

    is_query = (head < NUM_HEADS)[:, None] & is_lane[None, :]
    queries = q_out + token * q_token_stride + head[:, None] * q_head_stride + d[None, :]
    tl.store(queries, out_1.to(q_out.dtype.element_ty), mask=is_query)
    tl.store(queries + HALF, out_2.to(q_out.dtype.element_ty), mask=is_query)
    is_written = (slot >= 0) & is_lane[None, :]
    is_key = is_written & ((head >= NUM_HEADS) & (head < NUM_HEADS + KV_HEADS))[:, None]
    keys = key_cache + slot * slot_stride + (head - NUM_HEADS)[:, None] * kv_head_stride + d[None, :]
    tl.store(keys, out_1.to(key_cache.dtype.element_ty), mask=is_key)
    tl.store(keys + HALF, out_2.to(key_cache.dtype.element_ty), mask=is_key)
    values = value_cache + slot * slot_stride + (head - NUM_HEADS - KV_HEADS)[:, None] * kv_head_stride + d[None, :]
    tl.store(values, out_1.to(value_cache.dtype.element_ty), mask=is_written & is_value[:, None])
    tl.store(values + HALF, out_2.to(value_cache.dtype.element_ty), mask=is_written & is_value[:, None])


def rotate_and_write_plainly(
    qkv: Tensor,
    positions: Tensor,
    rotary_table: Tensor,
    slot_mapping: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    q_out: Tensor,
    *,
    norm_weight: Tensor | None,
    eps: float,
) -> None:
    """The twin, in qkv's dtype; arguments as above."""
    num_heads, kv_heads, head_dim = q_out.shape[1], *key_cache.shape[1:]
    heads = qkv.view(len(qkv), -1, head_dim)
    turned, values = heads[:, : num_heads + kv_heads], heads[:, num_heads + kv_heads :]
    if norm_weight is not None:
        turned = turned * torch.rsqrt(turned.square().mean(-1, keepdim=True) + eps) * norm_weight
    cos, sin = rotary_table[positions].unbind(1)
    turned = turned * cos + turned.roll(head_dim // 2, -1) * sin
    q_out.copy_(turned[:, :num_heads])
    is_written = slot_mapping >= 0
    key_cache[slot_mapping[is_written]] = turned[is_written, num_heads:].to(key_cache.dtype)
    value_cache[slot_mapping[is_written]] = values[is_written].to(value_cache.dtype)
