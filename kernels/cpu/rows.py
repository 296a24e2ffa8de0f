"""What happens to a row between two matrices: norm, activation, rounding to integers."""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .floats import gelu_tanh, silu
from .quantized_rows import GROUP
from .reductions import largest_magnitude_of, sum_of_squares
from .tiles import HIGH_MOST, HIGH_SHIFT, LARGEST

_LARGEST = np.float32(LARGEST)
_LARGEST_HIGH = np.float32(HIGH_MOST << HIGH_SHIFT)
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
def round_row(x, fine_from, values, scales):
    """x: float32 [size] -> integers in two parts (`tiles`); of each 32: scales [size / 32, 3] gets the scale s of the
    integers, s times their sum, and 1 if the low parts count.

    They do in groups whose largest number is at least `fine_from` times the row's root mean square: few numbers stick
    out of a row, and their neighbours would be lost beside them. The rest, most of a row, has 8 bits, and zeros for low
    parts. values: int8 [2 size]: of each 32 the high parts, then the low ones. A group that is not all finite numbers
    has a scale that is none.
    """
    limit = fine_from * np.sqrt(sum_of_squares(x.ctypes.data, x.size) / np.float32(x.size))
    for g in range(x.size // GROUP):
        group, parts = x[g * GROUP : (g + 1) * GROUP], values[2 * g * GROUP : 2 * (g + 1) * GROUP]
        largest = largest_magnitude_of(group.ctypes.data, GROUP)
        is_fine = not largest < limit
        if is_fine:
            steps, total = _LARGEST, _round_finely(group, largest, parts)
        else:
            steps, total = _LARGEST_HIGH, _round(group, largest, parts)
        scales[g, 0] = largest / steps
        scales[g, 1] = scales[g, 0] * np.float32(total)
        scales[g, 2] = _ONE if is_fine else _ZERO


@compiled
def _factor(steps, largest):
    return steps / largest if largest > _SMALLEST else _ZERO


@compiled
def _round(x, largest, parts):
    """Returns the sum of the integers."""
    factor, total = _factor(np.float32(HIGH_MOST), largest), np.int32(0)
    for i in range(GROUP):
        high = np.int32(np.rint(x[i] * factor))
        parts[i], parts[GROUP + i] = np.int8(high), np.int8(0)
        total += high
    return total << np.int32(HIGH_SHIFT)


@compiled
def _round_finely(x, largest, parts):
    """As `_round`."""
    factor, total = _factor(_LARGEST, largest), np.int32(0)
    for i in range(GROUP):
        value = np.int32(np.rint(x[i] * factor))
        high = (value + np.int32(_HALF_HIGH)) >> np.int32(HIGH_SHIFT)
        parts[i], parts[GROUP + i] = np.int8(high), np.int8(value - (high << np.int32(HIGH_SHIFT)))
        total += value
    return total
