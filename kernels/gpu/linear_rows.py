"""Memory-bound linear of 1 to 32 rows (or some hundred), with what stands before and behind it in a decoder layer.

    y = x weightᵀ + bias,  x = rms_norm(x) first where a norm is given
    out = residual + y        or        out = act(gate) * up,  [gate, up] = y

Two kernels do it: `row_dot` for one or two rows, `row_tiles` for more, there behind the kernel of the norm;
`tile_table.choose_tile` says which, and how it is cut. Sums are float32 in an order that only the shapes fix, and are
rounded once, into `out`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from .act_mul import ACTIVATIONS, act_mul_twin
from .launch import IS_INTERPRETED, has_dependent_launch, num_sms
from .rms_norm import rms_norm, rms_norm_twin
from .row_dot import row_dot_kernel
from .row_tiles import row_tiles_kernel
from .tile_table import RowDot, RowTiles, choose_tile

Norm = tuple[Tensor, float]
"""Weight, float32 [k], and eps of an RMSNorm."""


def linear_rows(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    tile: RowDot | RowTiles | None = None,
) -> None:
    """x: [n, k], rows may be strided; weight: [m, k], contiguous; bias: [m]; residual, out: [n, m], may be one tensor.
    With an activation weight is [2 * m, k], gate rows first, and bias [2 * m]. Dtypes: weight bfloat16, float16 or
    float32; the others any float. With `tile` given nothing is chosen.

    The first call on a device allocates a workspace: there has to be one before a CUDA graph is captured. Calls that
    may run at once on one device belong to one stream: they share it.
    """
    n, k = x.shape
    m = out.shape[1]
    _check(x, weight, out, bias, norm, residual, activation)
    if n == 0:
        return
    if tile is None:
        sms, element_size = num_sms(x.device), weight.element_size()
        tile = choose_tile(n, k, m, gated=activation is not None, num_sms=sms, element_size=element_size)
    pdl = has_dependent_launch(x.device)
    summand = out if residual is None else residual
    bias_or_any = weight if bias is None else bias
    if isinstance(tile, RowDot):
        norm_weight, eps = norm or (weight, 0.0)
        row_dot_kernel[(min(triton.cdiv(m, tile.block_m), tile.programs * num_sms(x.device)),)](
            x,
            weight,
            out,
            bias_or_any,
            norm_weight,
            summand,
            x.stride(0),
            out.stride(0),
            summand.stride(0),
            m,
            eps,
            n,
            k,
            tile.block_m,
            tile.block_k or triton.next_power_of_2(k),
            activation or "",
            bias is not None,
            norm is not None,
            residual is not None,
            pdl,
            num_warps=tile.warps,
            launch_pdl=pdl,
        )
        return
    workspace = _workspace(x.device)
    if norm is not None:
        normed = workspace.normed(n, k, weight.dtype)
        rms_norm(x, *norm, normed)
        x = normed
    grid = (triton.cdiv(m, tile.block_m), tile.splits, triton.cdiv(n, tile.block_n))
    if tile.splits > 1:
        workspace.check(grid, tile.block_m * tile.block_n * (2 if activation else 1))
    row_tiles_kernel[grid](
        x,
        weight,
        out,
        bias_or_any,
        summand,
        workspace.parts,
        workspace.tickets,
        x.stride(0),
        out.stride(0),
        summand.stride(0),
        n,
        m,
        k,
        tile.block_n,
        tile.block_m,
        tile.block_k,
        tile.splits,
        tile.stages,
        tile.prefetch,
        activation or "",
        bias is not None,
        residual is not None,
        pdl,
        IS_INTERPRETED,
        num_warps=tile.warps,
        launch_pdl=pdl,
    )


def _check(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    bias: Tensor | None,
    norm: Norm | None,
    residual: Tensor | None,
    activation: str | None,
) -> None:
    n, k = x.shape
    m = out.shape[1]
    num_weight_rows = m if activation is None else 2 * m
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, allowed are {', '.join(ACTIVATIONS)}")
    if activation is not None and residual is not None:
        raise ValueError("a residual is added to a linear without activation only")
    if weight.shape != (num_weight_rows, k) or not weight.is_contiguous():
        raise ValueError(f"weight is {list(weight.shape)}, x and out ask for {[num_weight_rows, k]}, contiguous")
    if out.shape[0] != n or (residual is not None and residual.shape != out.shape):
        raise ValueError(f"x has {n} rows, out is {list(out.shape)}, the residual has to be alike")
    if (bias is not None and bias.shape != (num_weight_rows,)) or (norm is not None and norm[0].shape != (k,)):
        raise ValueError(f"bias has to be [{num_weight_rows}], the norm's weight [{k}]")
    if any(tensor.stride(-1) != 1 for tensor in (x, out, residual, bias) if tensor is not None):
        raise ValueError("x, out, residual and bias need contiguous rows")


@dataclass(frozen=True)
class _Workspace:
    parts: Tensor
    """float32: parts of sums that programs share."""
    tickets: Tensor
    """int32, a counter a tile: zero whenever no kernel runs."""
    rows: Tensor
    """uint8: rows after their norm."""

    def normed(self, n: int, k: int, dtype: torch.dtype) -> Tensor:
        """[n, k]."""
        num_bytes = n * k * dtype.itemsize
        if num_bytes > self.rows.numel():
            raise ValueError(
                f"x of {n} rows of {k} takes {num_bytes:,} bytes after its norm, {self.rows.numel():,} fit"
            )
        return self.rows[:num_bytes].view(dtype).view(n, k)

    def check(self, grid: tuple[int, int, int], part_size: int) -> None:
        """Raise if the parts of such a grid do not fit."""
        tiles = grid[0] * grid[2]
        if tiles * grid[1] * part_size > self.parts.numel() or tiles > self.tickets.numel():
            raise ValueError(f"a grid of {grid} with {part_size} sums a program is more than the workspace holds")


@cache
def _workspace(device: torch.device) -> _Workspace:
    scale = 1 if device.type == "cuda" else 64
    return _Workspace(
        torch.empty((32 << 18) // scale, dtype=torch.float32, device=device),
        torch.zeros(1 << 14, dtype=torch.int32, device=device),
        torch.empty((8 << 20) // scale, dtype=torch.uint8, device=device),
    )


def linear_rows_twin(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """As `linear_rows`; computes in x's dtype."""
    if norm is not None:
        x = rms_norm_twin(x, *norm)
    y = F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    if activation is not None:
        y = act_mul_twin(y, activation)
    return y if residual is None else residual.to(x.dtype) + y
