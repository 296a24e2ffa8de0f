"""Rows times a packed matrix, panel by panel.

Panels are claimed by the threads of a team; a panel meets a block of rows at a time, so that both stay in the cache.
"""

from __future__ import annotations

from .compiled import compiled
from .floats import floats_at
from .meeting import barrier, claim, num_threads_of
from .panels import call_panel
from .quantized_rows import GROUP
from .step_arguments import BIAS, BITS, INPUTS, KERNEL, MINIMUMS, OUTPUTS, SCALES, VALUES
from .tiles import PANEL

_ROW_BLOCK = 128
_PARTS_PER_THREAD = 4
_MIN_PART_WORK = 1 << 16
"""Weights of a part: claiming costs some 50 ns, as many as this takes a thousand."""


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
