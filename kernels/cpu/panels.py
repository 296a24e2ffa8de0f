"""Any number of rows times one panel, in each format: tiles of as many rows as there are registers for, then the rest.

All have one form: (x, x_stride, scales, scales_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows), addresses and
bytes. Integer formats take rows in parts with their scales, the others float32 rows, and neither scales nor d nor m.
"""

from __future__ import annotations

from .isa import Isa, host_isa
from .quantized_rows import GROUP
from .tiles import PANEL, float_tile, integer_tile
from .vector_ir import caller, native

HOST = host_isa() or Isa.AVX2
"""Where there is neither, nothing here is called."""

_NUM_ARGUMENTS = 12
_TAKES_FOUR = HOST is Isa.VNNI
"""Whether integer tiles have registers for four rows."""
_I1, _I2, _I4 = (integer_tile(HOST, 4, rows) for rows in (1, 2, 4))
_J1, _J2, _J4 = (integer_tile(HOST, 8, rows) for rows in (1, 2, 4))
_H1, _H2, _H4, _H6 = (float_tile(HOST, 16, rows) for rows in (1, 2, 4, 6))
_F1, _F2, _F4, _F6 = (float_tile(HOST, 32, rows) for rows in (1, 2, 4, 6))

call_panel = caller(_NUM_ARGUMENTS)
"""(address of one of these, its arguments)"""
call_product = caller(8)
"""(address of `product`, its arguments)"""


@native(_NUM_ARGUMENTS)
def int4_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    groups = num_inputs // GROUP
    if _TAKES_FOUR:
        while num_rows >= 4:
            _I4(x, x_stride, s, s_stride, w, d, m, groups, y, y_stride, adds)
            x, s, y, num_rows = x + 4 * x_stride, s + 4 * s_stride, y + 4 * y_stride, num_rows - 4
    while num_rows >= 2:
        _I2(x, x_stride, s, s_stride, w, d, m, groups, y, y_stride, adds)
        x, s, y, num_rows = x + 2 * x_stride, s + 2 * s_stride, y + 2 * y_stride, num_rows - 2
    if num_rows:
        _I1(x, x_stride, s, s_stride, w, d, m, groups, y, y_stride, adds)


@native(_NUM_ARGUMENTS)
def int8_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    groups = num_inputs // GROUP
    if _TAKES_FOUR:
        while num_rows >= 4:
            _J4(x, x_stride, s, s_stride, w, d, m, groups, y, y_stride, adds)
            x, s, y, num_rows = x + 4 * x_stride, s + 4 * s_stride, y + 4 * y_stride, num_rows - 4
    while num_rows >= 2:
        _J2(x, x_stride, s, s_stride, w, d, m, groups, y, y_stride, adds)
        x, s, y, num_rows = x + 2 * x_stride, s + 2 * s_stride, y + 2 * y_stride, num_rows - 2
    if num_rows:
        _J1(x, x_stride, s, s_stride, w, d, m, groups, y, y_stride, adds)


@native(_NUM_ARGUMENTS)
def bfloat16_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    while num_rows >= 6:
        _H6(x, x_stride, w, 2 * PANEL, num_inputs, y, y_stride, adds)
        x, y, num_rows = x + 6 * x_stride, y + 6 * y_stride, num_rows - 6
    if num_rows >= 4:
        _H4(x, x_stride, w, 2 * PANEL, num_inputs, y, y_stride, adds)
        x, y, num_rows = x + 4 * x_stride, y + 4 * y_stride, num_rows - 4
    if num_rows >= 2:
        _H2(x, x_stride, w, 2 * PANEL, num_inputs, y, y_stride, adds)
        x, y, num_rows = x + 2 * x_stride, y + 2 * y_stride, num_rows - 2
    if num_rows:
        _H1(x, x_stride, w, 2 * PANEL, num_inputs, y, y_stride, adds)


@native(_NUM_ARGUMENTS)
def float32_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    while num_rows >= 6:
        _F6(x, x_stride, w, 4 * PANEL, num_inputs, y, y_stride, adds)
        x, y, num_rows = x + 6 * x_stride, y + 6 * y_stride, num_rows - 6
    if num_rows >= 4:
        _F4(x, x_stride, w, 4 * PANEL, num_inputs, y, y_stride, adds)
        x, y, num_rows = x + 4 * x_stride, y + 4 * y_stride, num_rows - 4
    if num_rows >= 2:
        _F2(x, x_stride, w, 4 * PANEL, num_inputs, y, y_stride, adds)
        x, y, num_rows = x + 2 * x_stride, y + 2 * y_stride, num_rows - 2
    if num_rows:
        _F1(x, x_stride, w, 4 * PANEL, num_inputs, y, y_stride, adds)


@native(8)
def product(x, x_stride, w, num_inputs, y, y_stride, adds, shape):
    """float32 rows times the first panels (16 columns) of a plain float32 matrix [num_inputs, 16 width];
    shape: num_rows << 32 | width << 16 | num_panels."""
    num_panels = shape & 0xFFFF
    w_stride = 4 * PANEL * (shape >> 16 & 0xFFFF)
    for panel in range(num_panels):
        num_rows = shape >> 32
        rows, out, at = x, y + 4 * PANEL * panel, w + 4 * PANEL * panel
        while num_rows >= 6:
            _F6(rows, x_stride, at, w_stride, num_inputs, out, y_stride, adds)
            rows, out, num_rows = rows + 6 * x_stride, out + 6 * y_stride, num_rows - 6
        if num_rows >= 4:
            _F4(rows, x_stride, at, w_stride, num_inputs, out, y_stride, adds)
            rows, out, num_rows = rows + 4 * x_stride, out + 4 * y_stride, num_rows - 4
        if num_rows >= 2:
            _F2(rows, x_stride, at, w_stride, num_inputs, out, y_stride, adds)
            rows, out, num_rows = rows + 2 * x_stride, out + 2 * y_stride, num_rows - 2
        if num_rows:
            _F1(rows, x_stride, at, w_stride, num_inputs, out, y_stride, adds)


PANELS = {4: int4_panel, 8: int8_panel, 16: bfloat16_panel, 32: float32_panel}
"""Bits of a weight -> the function."""
