"""What happens to a row between two matrices: norm, activation, rounding to integers."""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .floats import gelu_tanh, silu
from .quantized_rows import GROUP
from .reductions import largest_magnitude_of, sum_of_squares
from .tiles import HIGH_SHIFT, LARGEST

_LARGEST = np.float32(LARGEST)
_HALF_HIGH = 1 << HIGH_SHIFT - 1
_SMALLEST = np.float32(1e-30)
"""Rows of nothing larger are zeros: the factor would be near the largest number, and soon infinite."""
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@compiled
def rms_norm(x, weight, eps, out):
    """out = x / sqrt(mean(x²) + eps) weight; float32 [size] each. out may be x."""
    total = sum_of_squares(x.ctypes.data, x.size)
    scale = _ONE / np.sqrt(total / np.float32(x.size) + eps)
    for i in range(x.size):
        out[i] = x[i] * scale * weight[i]


@compiled
def gate(gate_up, size, is_gelu, out):
    """out = act(gate) up; gate_up: float32 [2 size], out: float32 [size]."""
    if is_gelu:
        for i in range(size):
            out[i] = gelu_tanh(gate_up[i]) * gate_up[size + i]
    else:
        for i in range(size):
            out[i] = silu(gate_up[i]) * gate_up[size + i]


@compiled
def round_row(x, values, scales):
    """x: float32 [size] -> integers of 15 bits; of each 32: scales [size / 32, 2] gets s = max |x| / LARGEST and s
    times their sum.

    values: int8 [2 size], in parts: of each 32 the high ones, then the low ones (`tiles`). A group that is not all
    finite numbers has a scale that is none.
    """
    for g in range(x.size // GROUP):
        first = g * GROUP
        largest = largest_magnitude_of(x.ctypes.data + 4 * first, GROUP)
        scale = largest / _LARGEST
        inverse = _LARGEST / largest if largest > _SMALLEST else _ZERO
        total = np.int32(0)
        for i in range(GROUP):
            value = np.int32(np.rint(x[first + i] * inverse))
            high = (value + np.int32(_HALF_HIGH)) >> np.int32(HIGH_SHIFT)
            values[2 * first + i] = np.int8(high)
            values[2 * first + GROUP + i] = np.int8(value - (high << np.int32(HIGH_SHIFT)))
            total += value
        scales[g, 0] = scale
        scales[g, 1] = scale * np.float32(total)
