"""Linear of up to some hundred rows through the matrix unit, a tile of weight rows a program.

    out[i, r] = epilogue(sum_j x[i, j] * weight[r, j])

The product is taken as weight tile times x transposed, so that the many rows are the weight's. Where few tiles would
leave multiprocessors idle, SPLITS programs share a tile's sum: each writes its part to a workspace, and the one that
comes last, whichever it is, adds all parts in the order of the splits. So the result does not depend on timing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .act_mul import activate
from .dependent_launch import prefetch_lines, wait_for_previous


@triton.jit
def _operand(a, INTERPRETED: tl.constexpr):
    """Triton's interpreter holds bfloat16 as integers and would multiply those."""
    if INTERPRETED:
        return a.to(tl.float32)
    else:  # noqa: RET505  (the branches of a constant: only one is compiled)
        return a


@triton.jit
def row_tiles_kernel(
    x,
    weight,
    out,
    bias,
    residual,
    parts,
    tickets,
    stride_x,
    stride_out,
    stride_residual,
    n,
    m,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    tile = tl.program_id(0)
    split = tl.program_id(1)
    tokens = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    k_part: tl.constexpr = (K + SPLITS * BLOCK_K - 1) // (SPLITS * BLOCK_K) * BLOCK_K
    even: tl.constexpr = K % (SPLITS * BLOCK_K) == 0
    start = split * k_part
    columns = start + tl.arange(0, BLOCK_K)
    # Rows beyond m read the last row instead of a mask; what they give is not stored.
    near = tl.minimum(rows, m - 1).to(tl.int64)
    weights = weight + near[:, None] * K + columns[None, :]
    up_offset = m.to(tl.int64) * K
    if PREFETCH > 0:
        lines = start + tl.arange(0, PREFETCH * BLOCK_K // 64) * 64
        pointers = weight + near[:, None] * K + tl.minimum(lines, K - 1)[None, :]
        prefetch_lines(pointers, PDL)
        if ACTIVATION != "":
            prefetch_lines(pointers + up_offset, PDL)
    wait_for_previous(PDL)
    present = (tokens < n)[:, None]
    inputs = x + tokens.to(tl.int64)[:, None] * stride_x + columns[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up_sums = sums
    for done in tl.range(0, k_part, BLOCK_K, num_stages=STAGES):
        if even:
            a = tl.load(weights + done, eviction_policy="evict_first")
            b = tl.load(inputs + done, present, other=0.0)
        else:
            left = (columns + done < K)[None, :]
            a = tl.load(weights + done, left, other=0.0, eviction_policy="evict_first")
            b = tl.load(inputs + done, present & left, other=0.0)
        b = _operand(tl.trans(b.to(a.dtype)), INTERPRETED)
        sums = tl.dot(_operand(a, INTERPRETED), b, sums, input_precision="ieee")
        if ACTIVATION != "":
            if even:
                c = tl.load(weights + up_offset + done, eviction_policy="evict_first")
            else:
                c = tl.load(weights + up_offset + done, left, other=0.0, eviction_policy="evict_first")
            up_sums = tl.dot(_operand(c, INTERPRETED), b, up_sums, input_precision="ieee")
    last = True
    if SPLITS > 1:
        part_size: tl.constexpr = BLOCK_M * BLOCK_N * (2 if ACTIVATION != "" else 1)
        place = (tile + tl.num_programs(0) * tl.program_id(2)) * SPLITS
        cells = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        own = parts + (place + split).to(tl.int64) * part_size
        tl.store(own + cells, sums)
        if ACTIVATION != "":
            tl.store(own + BLOCK_M * BLOCK_N + cells, up_sums)
        tl.debug_barrier()
        ticket = tickets + tile + tl.num_programs(0) * tl.program_id(2)
        last = tl.atomic_add(ticket, 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.debug_barrier()
            tl.store(ticket, 0)
            sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            up_sums = sums
            for other in tl.static_range(SPLITS):
                part = parts + (place + other).to(tl.int64) * part_size
                sums += tl.load(part + cells, cache_modifier=".cg")
                if ACTIVATION != "":
                    up_sums += tl.load(part + BLOCK_M * BLOCK_N + cells, cache_modifier=".cg")
    if last:
        y = sums
        if HAS_BIAS:
            y += tl.load(bias + rows, rows < m, other=0.0).to(tl.float32)[:, None]
        if ACTIVATION != "":
            up = up_sums
            if HAS_BIAS:
                up += tl.load(bias + m + rows, rows < m, other=0.0).to(tl.float32)[:, None]
            y = activate(y, ACTIVATION) * up
        stored = (rows < m)[:, None] & (tokens < n)[None, :]
        if HAS_RESIDUAL:
            y += tl.load(residual + tokens[None, :] * stride_residual + rows[:, None], stored, other=0.0).to(tl.float32)
        tl.store(out + tokens[None, :] * stride_out + rows[:, None], y.to(out.dtype.element_ty), stored)
