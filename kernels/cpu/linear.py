"""Rows times a packed matrix, panel by panel.

Panels are claimed by the threads of a team; a panel meets a block of rows at a time, so that both stay in the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .floats import floats_at
from .packing import PackedMatrix
from .panels import PANELS, call_panel
from .quantized_rows import GROUP
from .team import barrier, claim, num_threads_of
from .tiles import PANEL

BITS, OUTPUTS, INPUTS, VALUES, SCALES, MINIMUMS, BIAS, KERNEL, NUM_FIELDS = range(9)
"""Fields of a matrix in compiled code: int64 [8]; OUTPUTS filled up to panels, the last five are addresses."""
_ROW_BLOCK = 128
_PARTS_PER_THREAD = 4
_MIN_PART_WORK = 1 << 16
"""Weights of a part: claiming costs some 50 ns, as many as this takes a thousand."""


class Rows(NamedTuple):
    """Rows in both forms; the second is filled if an integer matrix takes them."""

    x: NDArray[np.float32]
    """[capacity, columns]"""
    values: NDArray[np.int8]
    """[capacity, 2 columns]: in parts"""
    scales: NDArray[np.float32]
    """[capacity, columns / 32, 3]"""
    fine_from: np.float32
    """What is rounded finely, as `rows.round_row` says; 0: everything."""


FINE_FROM = {8: 5.0, 15: 0.0}
"""Bits of a row -> `Rows.fine_from`. At 5 it is an eighth to a fifth of the groups of a language model's rows, in which
most of the rounding error was."""


def make_rows(capacity: int, columns: int, fine_from: float) -> Rows:
    """columns: of the widest matrix."""
    groups = -(-columns // GROUP)
    return Rows(
        np.zeros((capacity, columns), np.float32),
        np.zeros((capacity, 2 * GROUP * groups), np.int8),
        np.zeros((capacity, groups, 3), np.float32),
        np.float32(fine_from),
    )


def fields_of(matrix: PackedMatrix) -> NDArray[np.int64]:
    """int64 [8]; valid as long as the matrix lives."""
    bias = matrix.bias.ctypes.data if matrix.bias.size else 0
    arrays = (matrix.values.ctypes.data, matrix.d.ctypes.data, matrix.m.ctypes.data)
    addresses = (*arrays, bias, PANELS[matrix.bits]())
    return np.array((matrix.bits, matrix.num_panels * PANEL, matrix.in_features, *addresses), np.int64)


@compiled
def _panels(matrix, rows, first_row, count, first_panel, last_panel, y, adds):
    bits, num_inputs = matrix[BITS], matrix[INPUTS]
    x, x_stride = rows.x.ctypes.data, rows.x.strides[0]
    if bits <= 8:
        x, x_stride = rows.values.ctypes.data, rows.values.strides[0]
    s_stride, y_stride = rows.scales.strides[0], y.strides[0]
    x, scales = x + first_row * x_stride, rows.scales.ctypes.data + first_row * s_stride
    panel_bytes = PANEL * num_inputs * bits // 8
    scale_bytes = 2 * PANEL * (num_inputs // GROUP)
    for panel in range(first_panel, last_panel):
        w = matrix[VALUES] + panel * panel_bytes
        d, m = matrix[SCALES] + panel * scale_bytes, matrix[MINIMUMS] + panel * scale_bytes
        out = y.ctypes.data + first_row * y_stride + panel * 4 * PANEL
        call_panel(matrix[KERNEL], x, x_stride, scales, s_stride, w, d, m, num_inputs, out, y_stride, adds, count)


@compiled
def multiply(state, thread, matrix, rows, num_rows, y, adds):
    """y[: num_rows] = rows Wᵀ + bias, or += if `adds`; ends with a barrier.

    matrix: int64 [8]; y: float32 [capacity, OUTPUTS or more].
    """
    num_panels = matrix[OUTPUTS] // PANEL
    per_part = max(1, num_panels // (num_threads_of(state) * _PARTS_PER_THREAD))
    per_part = max(per_part, min(num_panels, _MIN_PART_WORK // (PANEL * matrix[INPUTS])))
    while True:
        first = claim(state, thread) * per_part
        if first >= num_panels:
            break
        last = min(first + per_part, num_panels)
        for row in range(0, num_rows, _ROW_BLOCK):
            count = min(_ROW_BLOCK, num_rows - row)
            _panels(matrix, rows, row, count, first, last, y, adds)
            if matrix[BIAS]:
                bias = floats_at(matrix[BIAS], matrix[OUTPUTS])
                for r in range(row, row + count):
                    for o in range(first * PANEL, last * PANEL):
                        y[r, o] += bias[o]
    barrier(state, thread)
