"""Vector pieces of a chunk's attention: keys turned into columns, the largest score of each row."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .panels import HOST
from .step_arguments import TILE_KEYS
from .tiles import load_floats
from .vector_ir import FLOAT, INT32, Emitter, kernel

TURNED = 8
"""Keys that are turned at once."""


def _turn(e: Emitter, rows: list[ir.Value]) -> list[ir.Value]:
    """8 rows of 8 -> 8 columns: blocks beside the diagonal change places, first of 4, then of 2, then of 1."""
    b = e.builder
    for width in (4, 2, 1):
        lanes = range(TURNED)
        # Lanes 8 .. 15 are those of the second row.
        above = _places([lane if lane & width == 0 else TURNED + lane - width for lane in lanes])
        below = _places([lane + width if lane & width == 0 else TURNED + lane for lane in lanes])
        turned = list(rows)
        for row in lanes:
            if row & width == 0:
                pair = rows[row], rows[row + width]
                turned[row], turned[row + width] = (b.shuffle_vector(*pair, places) for places in (above, below))
        rows = turned
    return rows


def _places(lanes: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(INT32, len(lanes)), lanes)


def _turner(bits: int) -> Callable[..., None]:
    """Compiled code calls it with (rows, stride, columns, target, target_stride): 8 rows of float32 or bfloat16 become
    8 columns of float32. Strides in bytes; `columns` is a multiple of 8."""

    def write(e: Emitter, rows, stride, columns, target, target_stride) -> None:
        with e.loop(e.builder.udiv(columns, e.const(TURNED))) as loop:
            loaded = [
                load_floats(e, e.address(rows, (stride, row), (loop.index, bits)), bits, TURNED)
                for row in range(TURNED)
            ]
            first = e.builder.mul(loop.index, e.const(TURNED))
            base = e.address(target, e.builder.mul(first, target_stride))
            for row, values in enumerate(_turn(e, loaded)):
                e.store(values, e.address(base, (target_stride, row)))

    return kernel(5, write)


turn_floats, turn_halves = _turner(32), _turner(16)


def _write_maxima(e: Emitter, scores, stride, num_rows, out, out_stride) -> None:
    b, lanes = e.builder, HOST.lanes
    with e.loop(num_rows) as loop:
        line = e.address(scores, b.mul(loop.index, stride))
        parts = [
            e.load(e.address(line, 4 * first), ir.VectorType(FLOAT, lanes)) for first in range(0, TILE_KEYS, lanes)
        ]
        while len(parts) > 1:
            parts = [e.larger(x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        largest = e.fold(parts[0], e.larger)
        e.store(largest, e.address(out, b.mul(loop.index, out_stride)))


maxima = kernel(5, _write_maxima)
"""(scores, stride, num_rows, out, out_stride): the largest of 64 float32 numbers of each row. Strides in bytes."""
