"""RMSNorm of rows, and the same with the residual add before it (Zhang and Sennrich 2019).

    rms_norm:      out = x * weight / sqrt(mean(x²) + eps)
    add_rms_norm:  residual += x;  out = rms_norm(residual)

Computed in float32; the norm of `add_rms_norm` sees the sum before it is rounded to the residual's dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dependent_launch import wait_for_previous
from .launch import has_dependent_launch


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    stride_x,
    stride_residual,
    stride_out,
    width,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    scale = tl.load(weight + columns, mask, other=0.0)
    wait_for_previous(PDL)
    z = tl.load(x + row * stride_x + columns, mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        place = residual + row * stride_residual + columns
        z += tl.load(place, mask, other=0.0).to(tl.float32)
        tl.store(place, z.to(residual.dtype.element_ty), mask)
    z *= tl.rsqrt(tl.sum(z * z, axis=0) / width + eps)
    tl.store(out + row * stride_out + columns, (z * scale).to(out.dtype.element_ty), mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """x, out: [t, width] of any float dtype, rows may be strided, out may be x; weight: float32 [width]."""
    _launch(x, None, weight, eps, out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """As `rms_norm` of x + residual; residual: [t, width], float32 or x's dtype, holds the sum afterwards."""
    _launch(x, residual, weight, eps, out)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, out: Tensor) -> None:
    t, width = x.shape
    if out.shape != x.shape or (residual is not None and residual.shape != x.shape) or weight.shape != (width,):
        shapes = [list(tensor.shape) for tensor in (x, weight, out) if tensor is not None]
        raise ValueError(f"x, weight and out of shapes {shapes} do not belong together")
    if any(tensor.stride(-1) != 1 for tensor in (x, residual, weight, out) if tensor is not None):
        raise ValueError("x, residual, weight and out need contiguous rows")
    if t == 0:
        return
    pdl = has_dependent_launch(x.device)
    block = triton.next_power_of_2(width)
    summand = x if residual is None else residual
    _rms_norm_kernel[(t,)](
        x,
        summand,
        weight,
        out,
        x.stride(0),
        summand.stride(0),
        out.stride(0),
        width,
        eps,
        residual is not None,
        block,
        pdl,
        num_warps=min(16, max(1, block // 256)),
        launch_pdl=pdl,
    )


def rms_norm_twin(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `rms_norm`, in x's dtype; weight is taken to it."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(x.dtype)
