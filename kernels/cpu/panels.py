"""Any number of rows times one panel, in each format: tiles of as many rows as there are registers for, then the rest.

All have one form: (x, x_stride, scales, scales_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows), addresses and
bytes. Integer formats take rows in parts with their scales, the others float32 rows, and neither scales nor d nor m.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .isa import Isa, host_isa
from .quantized_rows import GROUP
from .tiles import PANEL, float_tile, integer_tile
from .vector_ir import Emitter, caller, kernel, native

HOST = host_isa() or Isa.AVX2
"""Where there is neither, nothing here is called."""

_NUM_ARGUMENTS = 12
_INTEGER_SIZES = {Isa.AVX2: (4, 2, 1), Isa.VNNI: (6, 4, 2, 1)}[HOST]
"""Rows of a tile: as many as there are registers for."""
_FLOAT_SIZES = (6, 4, 2, 1)

call_panel = caller(_NUM_ARGUMENTS)
"""(address of one of these, its arguments)"""
call_product = caller(8)
"""(address of `product`, its arguments)"""


def _integer_panel(bits: int) -> Callable[..., None]:
    def write(e: Emitter, x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows) -> None:
        groups = e.builder.udiv(num_inputs, e.const(GROUP))

        def tile(size: int, first: ir.Value) -> None:
            rows, scales, out = (
                e.address(base, e.builder.mul(first, stride))
                for base, stride in ((x, x_stride), (s, s_stride), (y, y_stride))
            )
            write_tile = integer_tile(HOST, bits, size)
            write_tile(e, rows, x_stride, scales, s_stride, w, d, m, groups, out, y_stride, adds)

        e.tiles(num_rows, _INTEGER_SIZES, tile)

    return kernel(_NUM_ARGUMENTS, write)


def _write_floats(e: Emitter, bits: int, x, x_stride, w, w_stride, num_inputs, y, y_stride, adds, num_rows) -> None:
    def tile(size: int, first: ir.Value) -> None:
        rows, out = (e.address(base, e.builder.mul(first, stride)) for base, stride in ((x, x_stride), (y, y_stride)))
        float_tile(HOST, bits, size)(e, rows, x_stride, w, w_stride, num_inputs, out, y_stride, adds)

    e.tiles(num_rows, _FLOAT_SIZES, tile)


def _float_panel(bits: int) -> Callable[..., None]:
    def write(e: Emitter, x, x_stride, _s, _s_stride, w, _d, _m, num_inputs, y, y_stride, adds, num_rows) -> None:
        w_stride = e.const(PANEL * bits // 8)
        _write_floats(e, bits, x, x_stride, w, w_stride, num_inputs, y, y_stride, adds, num_rows)

    return kernel(_NUM_ARGUMENTS, write)


def _write_product(e: Emitter, x, x_stride, w, num_inputs, y, y_stride, adds, shape) -> None:
    b = e.builder
    w_stride = b.mul(b.and_(b.lshr(shape, e.const(16)), e.const(0xFFFF)), e.const(4 * PANEL))
    num_rows = b.lshr(shape, e.const(32))
    with e.loop(b.and_(shape, e.const(0xFFFF))) as panel:
        columns, out = (e.address(base, (panel.index, 4 * PANEL)) for base in (w, y))
        _write_floats(e, 32, x, x_stride, columns, w_stride, num_inputs, out, y_stride, adds, num_rows)


_int4, _int8 = (_integer_panel(bits) for bits in (4, 8))
_bfloat16, _float32 = (_float_panel(bits) for bits in (16, 32))
_product = kernel(8, _write_product)


@native(_NUM_ARGUMENTS)
def int4_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    _int4(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows)


@native(_NUM_ARGUMENTS)
def int8_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    _int8(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows)


@native(_NUM_ARGUMENTS)
def bfloat16_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    _bfloat16(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows)


@native(_NUM_ARGUMENTS)
def float32_panel(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows):
    _float32(x, x_stride, s, s_stride, w, d, m, num_inputs, y, y_stride, adds, num_rows)


@native(8)
def product(x, x_stride, w, num_inputs, y, y_stride, adds, shape):
    """float32 rows times the first panels (16 columns) of a plain float32 matrix [num_inputs, 16 width];
    shape: num_rows << 32 | width << 16 | num_panels."""
    _product(x, x_stride, w, num_inputs, y, y_stride, adds, shape)
