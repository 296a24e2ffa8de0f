"""The innermost loops: some rows times one panel of 16 columns of a packed matrix.

A panel holds the weights of 16 output features. How its bytes lie (`packing` makes them):

- int4: for each 8 inputs 64 bytes, in a low nibble inputs 0 to 3 and in a high one 4 to 7 of one output: byte
  4 o + i of the 64 is (output o, inputs i and 4 + i).
- int8: for each 4 inputs 64 bytes: byte 4 o + i is (output o, input i), as weight + 128.
- float32, bfloat16: for each input 16 values.

Integer formats have a scale d and a minimum m for each 32 inputs of an output, float16: weight = d q + m with q >= 0.
Rows are integers x of 15 bits with a scale s for each 32 inputs, and the sum t = s Σ x beside it. So a product is the
sum over groups of d s Σ q x + m t, where Σ q x is exact: what a tile returns does not depend on its number of rows.
(With 7 bits, half the work, one in thirty of the most likely tokens was another.) They come as two int8 parts, x = 128
high + low, for each group the 32 high ones before the 32 low ones, which are multiplied as two rows.

AVX2 has no dot product of bytes that accumulates: products of neighbours are added in 16 bits, which hold eight times
2 · 15 · 127, a whole group of 32. An int8 weight is two nibbles, multiplied apart. AVX-512 VNNI does all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llvmlite import ir

from ...checkpoints.weight_formats import PANEL_ROWS
from .isa import Isa
from .quantized_rows import GROUP
from .vector_ir import FLOAT, HALF, INT8, INT16, INT32, Emitter, kernel

PANEL = PANEL_ROWS
"""Outputs of a panel."""
HIGH_SHIFT = 7
"""A row's integer is high << 7, plus low."""
LARGEST = (127 << HIGH_SHIFT) + 63
"""Of a row's integers: high is at most 127, low from -64 to 63."""
_QUADS = GROUP // 4

T = TypeVar("T")
Tile = Callable[..., None]
Sums = list[list[ir.Value]]
"""[row][half]: int32 vectors, of one group."""


def integer_tile(isa: Isa, bits: int, num_rows: int) -> Tile:
    """Compiled code calls it with (x, x_stride, scales, scales_stride, quants, d, m, num_groups, y, y_stride, adds):

    x: rows in parts; scales: float32 pairs (s, t), one for each group; quants, d, m: of the panel; y: float32 rows, of
    which 16 are written, or added to if `adds`. Strides in bytes.
    """
    group_sums = _vnni_sums if isa is Isa.VNNI else _avx2_sums
    lanes = isa.lanes
    halves = range(PANEL // lanes)

    def write(e: Emitter, x, x_stride, scales, scales_stride, quants, d, m, num_groups, y, y_stride, adds) -> None:
        b = e.builder
        rows = [e.address(x, (x_stride, row)) for row in range(num_rows)]
        pairs = [e.address(scales, (scales_stride, row)) for row in range(num_rows)]
        totals = [[e.variable(e.vector(FLOAT, lanes, 0.0)) for _ in halves] for _ in rows]
        with e.loop(num_groups) as loop:
            group = loop.index
            panel = e.address(quants, (group, PANEL * GROUP * bits // 8))
            starts = [e.address(row, (group, 2 * GROUP)) for row in rows]
            sums = group_sums(e, bits, panel, [e.address(start, part) for start in starts for part in (0, GROUP)])
            floats = ir.VectorType(FLOAT, lanes)
            ds, ms = (
                [
                    b.fpext(
                        e.load(e.address(base, (group, 2 * PANEL), 2 * lanes * h), ir.VectorType(HALF, lanes)), floats
                    )
                    for h in halves
                ]
                for base in (d, m)
            )
            for row, pair in enumerate(pairs):
                at = e.address(pair, (group, 8))
                scale, total = (e.splat(e.load(e.address(at, offset), FLOAT), lanes) for offset in (0, 4))
                for h in halves:
                    value = e.fma(b.sitofp(sums[row][h], floats), b.fmul(ds[h], scale), b.load(totals[row][h]))
                    b.store(e.fma(ms[h], total, value), totals[row][h])
        _put(e, totals, y, y_stride, adds, lanes)

    return kernel(11, write)


def float_tile(isa: Isa, bits: int, num_rows: int) -> Tile:
    """Compiled code calls it with (x, x_stride, w, w_stride, num_inputs, y, y_stride, adds): float32 rows times
    num_inputs x 16 values of 32 bits, or of 16 (bfloat16), whose rows lie w_stride apart. Strides in bytes."""
    lanes = isa.lanes
    halves = range(PANEL // lanes)

    def write(e: Emitter, x, x_stride, w, w_stride, num_inputs, y, y_stride, adds) -> None:
        b = e.builder
        rows = [e.address(x, (x_stride, row)) for row in range(num_rows)]
        totals = [[e.variable(e.vector(FLOAT, lanes, 0.0)) for _ in halves] for _ in rows]
        with e.loop(num_inputs) as loop:
            at = e.address(w, b.mul(loop.index, w_stride))
            weights = [load_floats(e, e.address(at, bits // 8 * lanes * h), bits, lanes) for h in halves]
            for row, base in enumerate(rows):
                value = e.splat(e.load(e.address(base, (loop.index, 4)), FLOAT), lanes)
                for h in halves:
                    b.store(e.fma(value, weights[h], b.load(totals[row][h])), totals[row][h])
        _put(e, totals, y, y_stride, adds, lanes)

    return kernel(8, write)


def load_floats(e: Emitter, address: ir.Value, bits: int, lanes: int) -> ir.Value:
    """float32 or bfloat16 values as float32, one in each lane."""
    if bits == 32:
        return e.load(address, ir.VectorType(FLOAT, lanes))
    b, words = e.builder, ir.VectorType(INT32, lanes)
    upper = b.zext(e.load(address, ir.VectorType(INT16, lanes)), words)
    return b.bitcast(b.shl(upper, e.vector(INT32, lanes, 16)), ir.VectorType(FLOAT, lanes))


def _put(e: Emitter, totals: list[list[ir.Value]], y: ir.Value, stride: ir.Value, adds: ir.Value, lanes: int) -> None:
    b = e.builder
    is_sum = b.icmp_signed("!=", adds, e.const(0))
    with b.if_else(is_sum) as (then, otherwise):
        for branch, is_added in ((then, True), (otherwise, False)):
            with branch:
                for row, halves in enumerate(totals):
                    for h, total in enumerate(halves):
                        at = e.address(y, (stride, row), 4 * lanes * h)
                        value = b.load(total)
                        if is_added:
                            value = b.fadd(value, e.load(at, value.type))
                        e.store(value, at)


def _vnni_sums(e: Emitter, bits: int, panel: ir.Value, rows: list[ir.Value]) -> Sums:
    """One register holds the whole panel."""
    sums = [e.vector(INT32, 16, 0) for _ in rows]
    for quad in range(_QUADS):
        if bits == 8:
            weights = e.load(e.address(panel, 64 * quad), ir.VectorType(INT8, 64))
        elif quad % 2 == 0:
            raw = e.load(e.address(panel, 32 * quad), ir.VectorType(INT8, 64))
            weights, high = _nibbles(e, raw)
        else:
            weights = high
        for row, base in enumerate(rows):
            x = _four(e, e.address(base, 4 * quad), 64)
            sums[row] = _dot(e, sums[row], weights, x)
    shift = e.vector(INT32, 16, HIGH_SHIFT)
    return [[e.builder.add(e.builder.shl(high, shift), low)] for high, low in pairwise_parts(sums)]


def _dot(e: Emitter, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """Unsigned bytes times signed ones, four by four, added to `total`."""
    return e.call("llvm.x86.avx512.vpdpbusd.512", total.type, total, weights, x)


def _avx2_sums(e: Emitter, bits: int, panel: ir.Value, rows: list[ir.Value]) -> Sums:
    return _avx2_sums_of_int4(e, panel, rows) if bits == 4 else _avx2_sums_of_int8(e, panel, rows)


def _avx2_sums_of_int4(e: Emitter, panel: ir.Value, rows: list[ir.Value]) -> Sums:
    b = e.builder
    shorts = [[e.variable(e.vector(INT16, 16, 0)) for _ in range(2)] for _ in rows]
    with e.loop(_rounds(e, _QUADS // 2, rows)) as step:
        weights = [
            _nibbles(e, e.load(e.address(panel, (step.index, 64), 32 * h), ir.VectorType(INT8, 32))) for h in range(2)
        ]
        for row, base in enumerate(rows):
            for part in range(2):
                x = _four(e, e.address(base, (step.index, 8), 4 * part), 32)
                for h in range(2):
                    b.store(_pairs(e, b.load(shorts[row][h]), weights[h][part], x), shorts[row][h])
    return [
        [b.add(_widen(e, b.load(high[h]), 1 << HIGH_SHIFT), _widen(e, b.load(low[h]), 1)) for h in range(2)]
        for high, low in pairwise_parts(shorts)
    ]


def _avx2_sums_of_int8(e: Emitter, panel: ir.Value, rows: list[ir.Value]) -> Sums:
    """Half by half: there are registers for no more."""
    b = e.builder
    sums: Sums = [[] for _ in range(len(rows) // 2)]
    for h in range(2):
        shorts = [[e.variable(e.vector(INT16, 16, 0)) for _ in range(2)] for _ in rows]
        with e.loop(_rounds(e, _QUADS, rows)) as quad:
            nibbles = _nibbles(e, e.load(e.address(panel, (quad.index, 64), 32 * h), ir.VectorType(INT8, 32)))
            for row, base in enumerate(rows):
                x = _four(e, e.address(base, (quad.index, 4)), 32)
                for part in range(2):
                    b.store(_pairs(e, b.load(shorts[row][part]), nibbles[part], x), shorts[row][part])
        for row, (high, low) in enumerate(pairwise_parts(shorts)):
            total = _widen(e, b.load(low[0]), 1)
            for nibbles, factor in ((low[1], 16), (high[0], 1 << HIGH_SHIFT), (high[1], 16 << HIGH_SHIFT)):
                total = b.add(total, _widen(e, b.load(nibbles), factor))
            sums[row].append(total)
    return sums


def pairwise_parts(parts: list[T]) -> list[tuple[T, T]]:
    """(of the high part, of the low part) of each row."""
    return list(zip(parts[0::2], parts[1::2], strict=True))


def _rounds(e: Emitter, count: int, rows: list[ir.Value]) -> ir.Value:
    """Few rows leave registers enough for a loop to be unrolled."""
    return e.const(count) if len(rows) <= 2 else e.opaque(count)


def _nibbles(e: Emitter, raw: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(low, high) of each byte."""
    b, count = e.builder, raw.type.count
    mask = e.vector(INT8, count, 15)
    words = b.bitcast(raw, ir.VectorType(INT16, count // 2))
    high = b.bitcast(b.lshr(words, e.vector(INT16, count // 2, 4)), raw.type)
    return b.and_(raw, mask), b.and_(high, mask)


def _four(e: Emitter, address: ir.Value, num_bytes: int) -> ir.Value:
    """Four inputs of a row, again and again."""
    word = e.load(address, INT32)
    return e.builder.bitcast(e.splat(word, num_bytes // 4), ir.VectorType(INT8, num_bytes))


def _pairs(e: Emitter, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """total + the sums of two neighbouring products, in 16 bits."""
    products = e.call("llvm.x86.avx2.pmadd.ub.sw", ir.VectorType(INT16, 16), weights, x)
    return e.builder.add(total, products)


def _widen(e: Emitter, shorts: ir.Value, factor: int) -> ir.Value:
    """Sums of two neighbours times `factor`, in 32 bits."""
    return e.call("llvm.x86.avx2.pmadd.wd", ir.VectorType(INT32, 8), shorts, e.vector(INT16, 16, factor))
