"""Gated activation: out = act(gate) * up, with act SiLU or GELU in its tanh form (Shazeer 2020, "GLU variants").

    silu(z) = z * sigmoid(z)        gelu_tanh(z) = z * sigmoid(2 * sqrt(2 / pi) * (z + 0.044715 z³))

The second is 0.5 z (1 + tanh(...)) written with a sigmoid. Computed in float32, rounded once.
"""

from __future__ import annotations

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .dependent_launch import wait_for_previous
from .launch import has_dependent_launch

ACTIVATIONS = ("silu", "gelu_tanh")
_BLOCK = 1024


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """float32 -> float32, elementwise."""
    if ACTIVATION == "silu":
        return z * tl.sigmoid(z)
    else:  # noqa: RET505  (the branches of a constant: only one is compiled)
        return z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))


@triton.jit
def _act_mul_kernel(
    gate_up, out, stride_gate_up, stride_out, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    wait_for_previous(PDL)
    gate = tl.load(gate_up + row * stride_gate_up + columns, mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride_gate_up + width + columns, mask, other=0.0).to(tl.float32)
    y = activate(gate, ACTIVATION) * up
    tl.store(out + row * stride_out + columns, y.to(out.dtype.element_ty), mask)


def act_mul(gate_up: Tensor, out: Tensor, activation: str) -> None:
    """gate_up: [t, 2 * i], gate columns first; out: [t, i]; rows may be strided; activation: one of `ACTIVATIONS`."""
    t, width = out.shape
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, allowed are {', '.join(ACTIVATIONS)}")
    if gate_up.shape != (t, 2 * width):
        raise ValueError(f"gate_up is {list(gate_up.shape)}, out {list(out.shape)} asks for {[t, 2 * width]}")
    if gate_up.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("gate_up and out need contiguous rows")
    if t == 0:
        return
    pdl = has_dependent_launch(out.device)
    _act_mul_kernel[(t, triton.cdiv(width, _BLOCK))](
        gate_up, out, gate_up.stride(0), out.stride(0), width, activation, _BLOCK, pdl, num_warps=4, launch_pdl=pdl
    )


def act_mul_twin(gate_up: Tensor, activation: str) -> Tensor:
    """As `act_mul`, in the dtype of `gate_up`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
