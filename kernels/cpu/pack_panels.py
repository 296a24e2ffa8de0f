"""What packs weights, compiled: integers out of bytes, the transposes into panels, the rounding of floats to groups."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .compiled import compiled
from .floats import widen_half
from .quantized_rows import GROUP
from .tiles import PANEL

_ZERO, _LARGEST_HALF = np.float32(0.0), np.float32(65504.0)
_FIFTEEN, _MOST = np.float32(15.0), np.float32(255.0)
_HIGHEST, _MIDDLE = np.float32(127.0), np.float32(128.0)


@intrinsic
def _narrow_half(context, value):
    """The 16 bits of the nearest float16 of a float32, ties to even."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@compiled
def interleave(quads, out):
    """Four inputs of 16 outputs side by side; of integers of 4 bits eight, the later four in the upper halves.

    quads: uint32 [16 num_panels, in_features / 4], four integers each; out: uint32 [num_panels, in_features / 4 or
    in_features / 8, 16].
    """
    num_panels, width = out.shape[0], out.shape[1]
    is_packed = width < quads.shape[1]
    for panel in range(num_panels):
        lines = quads[panel * PANEL : (panel + 1) * PANEL]
        for i in range(width):
            for row in range(PANEL):
                if is_packed:
                    out[panel, i, row] = lines[row, 2 * i] | lines[row, 2 * i + 1] << np.uint32(4)
                else:
                    out[panel, i, row] = lines[row, i]


@compiled
def split_nibbles(blocks: NDArray[np.uint8], first: int, group: int, q: NDArray[np.uint8]) -> None:
    """Of each `group` bytes from byte `first` of a block on the lower halves, then the upper ones.

    blocks: uint8 [n, block bytes]; q: uint8 [n, integers of a block].
    """
    for block in range(q.shape[0]):
        for half in range(q.shape[1] // (2 * group)):
            source, target = first + half * group, 2 * half * group
            for i in range(group):
                byte = blocks[block, source + i]
                q[block, target + i] = byte & np.uint8(15)
                q[block, target + group + i] = byte >> np.uint8(4)


@compiled
def interleave_scales(scales, out):
    """uint16 [16 num_panels, groups] -> [num_panels, groups, 16]."""
    for panel in range(out.shape[0]):
        for group in range(out.shape[1]):
            for row in range(PANEL):
                out[panel, group, row] = scales[panel * PANEL + row, group]


@compiled
def quantize_four(weights, q, d, m):
    """Each group from its minimum to its maximum in 15 steps. weights: float32 [n, columns]; q: uint8 [n, columns];
    d, m: float16 as uint16 [n, columns / 32]."""
    for row in range(weights.shape[0]):
        for group in range(d.shape[1]):
            line = weights[row, group * GROUP : (group + 1) * GROUP]
            low = high = line[0]
            for value in line:
                low, high = min(low, value), max(high, value)
            d[row, group] = _narrow_half(min(max((high - low) / _FIFTEEN, _ZERO), _LARGEST_HALF))
            m[row, group] = _narrow_half(min(max(low, -_LARGEST_HALF), _LARGEST_HALF))
            _round(line, widen_half(d[row, group]), widen_half(m[row, group]), _FIFTEEN, q[row, group * GROUP :])


@compiled
def quantize_eight(weights, q, d, m):
    """As `quantize_four`, even on both sides of zero, which is 128: d (q - 128), q from 1 to 255."""
    for row in range(weights.shape[0]):
        for group in range(d.shape[1]):
            line = weights[row, group * GROUP : (group + 1) * GROUP]
            largest = _ZERO
            for value in line:
                largest = max(largest, abs(value))
            d[row, group] = _narrow_half(min(largest / _HIGHEST, _LARGEST_HALF / _MIDDLE))
            scale = widen_half(d[row, group])
            m[row, group] = _narrow_half(-_MIDDLE * scale)
            _round(line, scale, widen_half(m[row, group]), _MOST, q[row, group * GROUP :])


@compiled
def _round(line, scale, lowest, highest, q):
    for i in range(GROUP):
        step = (line[i] - lowest) / scale if scale > _ZERO else _ZERO
        q[i] = np.uint8(min(max(np.rint(step), _ZERO), highest))
