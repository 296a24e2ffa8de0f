"""Linear of a few rows, each product an elementwise multiply and a sum: where only the bytes of the weight cost.

    out[i, r] = epilogue(sum_j x[i, j] * weight[r, j]),  x = rms_norm(x) first where a norm is given

A program streams blocks of BLOCK_M weight rows past x, in chunks of BLOCK_K columns; the next chunk, of this block or
of the program's next one, is on its way while one is summed, and the first is loaded before the previous kernel ends.
Where one chunk holds a whole row, the rows of x stay in registers for the program's life; else they come from L1.
The norm's 1 / rms is one factor of a row, so it multiplies the sums and not the inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .act_mul import activate
from .dependent_launch import wait_for_previous


@triton.jit
def _load_block(weight, first, m, columns, K: tl.constexpr, BLOCK_M: tl.constexpr):
    """BLOCK_M rows of the weight from `first` on: [BLOCK_M, BLOCK_K]; beyond m and K nothing is read."""
    rows = first + tl.arange(0, BLOCK_M)
    mask = (rows < m)[:, None] & (columns < K)[None, :]
    pointers = weight + rows.to(tl.int64)[:, None] * K + columns[None, :]
    return tl.load(pointers, mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _products(block, row, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, FOLDS: tl.constexpr):
    """[BLOCK_M, BLOCK_K] times [BLOCK_K]; with FOLDS sums of 8 neighbours, which one thread holds, are left of it."""
    products = block.to(tl.float32) * row.to(tl.float32)[None, :]
    if FOLDS:
        return tl.sum(tl.reshape(products, (BLOCK_M, BLOCK_K // 8, 8)), axis=2)
    else:  # noqa: RET505  (the branches of a constant: only one is compiled)
        return products


@triton.jit
def row_dot_kernel(
    x,
    weight,
    out,
    bias,
    norm_weight,
    residual,
    stride_x,
    stride_out,
    stride_residual,
    m,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    chunks: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    columns = tl.arange(0, BLOCK_K)
    first = tl.program_id(0) * BLOCK_M
    step = tl.num_programs(0) * BLOCK_M
    ups = weight + m.to(tl.int64) * K
    block = _load_block(weight, first, m, columns, K, BLOCK_M)
    up_block = block
    if ACTIVATION != "":
        up_block = _load_block(ups, first, m, columns, K, BLOCK_M)
    if HAS_NORM:
        scale = tl.load(norm_weight + columns, columns < K, other=0.0)
    wait_for_previous(PDL)
    inputs = ()
    factors = ()
    for i in tl.static_range(N):
        factor = 1.0
        if HAS_NORM or chunks == 1:
            squares = tl.zeros((BLOCK_K,), tl.float32)
            for chunk in tl.static_range(chunks):
                here = chunk * BLOCK_K + columns
                row = tl.load(x + i * stride_x + here, here < K, other=0.0)
                if HAS_NORM:
                    row = row.to(tl.float32)
                    squares += row * row
            if HAS_NORM:
                factor = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
                row = row * scale
            inputs = inputs + (row,)  # noqa: RUF005
        factors = factors + (factor,)  # noqa: RUF005
    while first < m:
        sums = ()
        up_sums = ()
        for chunk in tl.static_range(chunks):
            now = block
            up_now = up_block
            here = chunk * BLOCK_K + columns
            if chunk + 1 < chunks:
                block = _load_block(weight, first, m, here + BLOCK_K, K, BLOCK_M)
                if ACTIVATION != "":
                    up_block = _load_block(ups, first, m, here + BLOCK_K, K, BLOCK_M)
            else:
                block = _load_block(weight, first + step, m, columns, K, BLOCK_M)
                if ACTIVATION != "":
                    up_block = _load_block(ups, first + step, m, columns, K, BLOCK_M)
            if HAS_NORM and chunks > 1:
                scale = tl.load(norm_weight + here, here < K, other=0.0)
            before = sums
            up_before = up_sums
            sums = ()
            up_sums = ()
            for i in tl.static_range(N):
                if chunks == 1:
                    row = inputs[i]
                else:
                    row = tl.load(x + i * stride_x + here, here < K, other=0.0)
                    if HAS_NORM:
                        row = row.to(tl.float32) * scale
                part = _products(now, row, BLOCK_M, BLOCK_K, chunks > 1)
                if chunk > 0:
                    part += before[i]
                sums = sums + (part,)  # noqa: RUF005
                if ACTIVATION != "":
                    part = _products(up_now, row, BLOCK_M, BLOCK_K, chunks > 1)
                    if chunk > 0:
                        part += up_before[i]
                    up_sums = up_sums + (part,)  # noqa: RUF005
        rows = first + tl.arange(0, BLOCK_M)
        for i in tl.static_range(N):
            y = tl.sum(sums[i], axis=1) * factors[i]
            if HAS_BIAS:
                y += tl.load(bias + rows, rows < m, other=0.0).to(tl.float32)
            if ACTIVATION != "":
                up = tl.sum(up_sums[i], axis=1) * factors[i]
                if HAS_BIAS:
                    up += tl.load(bias + m + rows, rows < m, other=0.0).to(tl.float32)
                y = activate(y, ACTIVATION) * up
            if HAS_RESIDUAL:
                y += tl.load(residual + i * stride_residual + rows, rows < m, other=0.0).to(tl.float32)
            tl.store(out + i * stride_out + rows, y.to(out.dtype.element_ty), rows < m)
        first += step
