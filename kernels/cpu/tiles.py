"""The innermost loops: some rows times one panel of 16 columns of a packed matrix.

A panel holds the weights of 16 output features. How its bytes lie (`packing` makes them):

- int4: for each 8 inputs 64 bytes, in a low nibble inputs 0 to 3 and in a high one 4 to 7 of one output: byte
  4 o + i of the 64 is (output o, inputs i and 4 + i).
- int8: for each 4 inputs 64 bytes: byte 4 o + i is (output o, input i), as weight + 128.
- float32, bfloat16: for each input 16 values.

Integer formats have a scale d and a minimum m for each 32 inputs of an output, float16: weight = d q + m with q >= 0.
Rows are integers x with a scale s for each 32 inputs, and the sum t = s Σ x beside it. So a product is the sum over
groups of d s Σ q x + m t, where Σ q x is exact: what a tile returns does not depend on its number of rows. x has 15
bits in two int8 parts, x = 128 high + low, for each group the 32 high ones before the 32 low ones. In most groups the
low ones are zeros (`rows.round_row`), and are passed over where that is said of all rows of a tile.

AVX2 has no dot product of bytes that accumulates: products of neighbours are added in 16 bits, which hold eight times
2 · 15 · 127, a whole group of 32. An int8 weight is two nibbles, multiplied apart. AVX-512 VNNI does all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from llvmlite import ir

from .isa import Isa
from .quantized_rows import GROUP, PANEL
from .vector_ir import FLOAT, HALF, INT8, INT16, INT32, Emitter

HIGH_SHIFT = 7
"""A row's integer is high << 7, plus low."""
HIGH_MOST = 127
LARGEST = (HIGH_MOST << HIGH_SHIFT) + 63
"""Of a row's integers: low is from -64 to 63."""
SCALE_BYTES = 12
"""Of a group of a row: float32 s and t, and 1.0 if its low parts count."""
_QUADS = GROUP // 4

Tile = Callable[..., None]
"""(emitter, *arguments)"""
Sums = list[list[ir.Value]]
"""[row][half]: int32 vectors, of one group."""


def integer_tile(isa: Isa, bits: int, num_rows: int) -> Tile:
    """Writes code for (x, x_stride, scales, scales_stride, quants, d, m, num_groups, y, y_stride, adds):

    x: rows in parts; scales: SCALE_BYTES for each group; quants, d, m: of the panel; y: float32 rows, of
    which 16 are written, or added to if `adds`. Strides in bytes.
    """
    group_sums = _vnni_sums if isa is Isa.VNNI else _avx2_sums
    lanes = isa.lanes
    halves = range(PANEL // lanes)

    def write(e: Emitter, x, x_stride, scales, scales_stride, quants, d, m, num_groups, y, y_stride, adds) -> None:
        b = e.builder
        rows = [e.address(x, (x_stride, row)) for row in range(num_rows)]
        scales_of_rows = [e.address(scales, (scales_stride, row)) for row in range(num_rows)]
        totals = [[e.variable(e.vector(FLOAT, lanes, 0.0)) for _ in halves] for _ in rows]
        with e.loop(num_groups) as loop:
            group = loop.index
            panel = e.address(quants, (group, PANEL * GROUP * bits // 8))
            high = [e.address(row, (group, 2 * GROUP)) for row in rows]
            marks = [e.load(e.address(each, (group, SCALE_BYTES), 8), INT32) for each in scales_of_rows]
            sums = [[e.variable(part) for part in row] for row in group_sums(e, bits, panel, high, HIGH_SHIFT)]
            with b.if_then(b.icmp_signed("!=", reduce(b.or_, marks), ir.Constant(INT32, 0))):
                low = [e.address(at, GROUP) for at in high]
                for row, parts in zip(sums, group_sums(e, bits, panel, low, 0), strict=True):
                    for variable, part in zip(row, parts, strict=True):
                        b.store(b.add(b.load(variable), part), variable)
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
            for row, base in enumerate(scales_of_rows):
                at = e.address(base, (group, SCALE_BYTES))
                scale, total = (e.splat(e.load(e.address(at, offset), FLOAT), lanes) for offset in (0, 4))
                for h in halves:
                    value = e.fma(b.sitofp(b.load(sums[row][h]), floats), b.fmul(ds[h], scale), b.load(totals[row][h]))
                    b.store(e.fma(ms[h], total, value), totals[row][h])
        _put(e, totals, y, y_stride, adds, lanes)

    return write


def float_tile(isa: Isa, bits: int, num_rows: int) -> Tile:
    """Writes code for (x, x_stride, w, w_stride, num_inputs, y, y_stride, adds): float32 rows times
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

    return write


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


def _vnni_sums(e: Emitter, bits: int, panel: ir.Value, rows: list[ir.Value], shift: int) -> Sums:
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
            sums[row] = _dot(e, sums[row], weights, _four(e, e.address(base, 4 * quad), 64))
    return [[e.builder.shl(total, e.vector(INT32, 16, shift))] for total in sums]


def _dot(e: Emitter, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
    """Unsigned bytes times signed ones, four by four, added to `total`."""
    return e.call("llvm.x86.avx512.vpdpbusd.512", total.type, total, weights, x)


def _avx2_sums(e: Emitter, bits: int, panel: ir.Value, rows: list[ir.Value], shift: int) -> Sums:
    return (_avx2_sums_of_int4 if bits == 4 else _avx2_sums_of_int8)(e, panel, rows, shift)


def _avx2_sums_of_int4(e: Emitter, panel: ir.Value, rows: list[ir.Value], shift: int) -> Sums:
    b = e.builder
    shorts = [[e.variable(e.vector(INT16, 16, 0)) for _ in range(2)] for _ in rows]
    with e.loop(_rounds(e, _QUADS // 2, rows)) as step:
        weights = [
            _nibbles(e, e.load(e.address(panel, (step.index, 64), 32 * h), ir.VectorType(INT8, 32))) for h in range(2)
        ]
        for row, base in enumerate(rows):
            for nibble in range(2):
                x = _four(e, e.address(base, (step.index, 8), 4 * nibble), 32)
                for h in range(2):
                    b.store(_pairs(e, b.load(shorts[row][h]), weights[h][nibble], x), shorts[row][h])
    return [[_widen(e, b.load(half), 1 << shift) for half in halves] for halves in shorts]


def _avx2_sums_of_int8(e: Emitter, panel: ir.Value, rows: list[ir.Value], shift: int) -> Sums:
    """Half by half: there are registers for no more."""
    b = e.builder
    sums: Sums = [[] for _ in rows]
    for h in range(2):
        shorts = [[e.variable(e.vector(INT16, 16, 0)) for _ in range(2)] for _ in rows]
        with e.loop(_rounds(e, _QUADS, rows)) as quad:
            nibbles = _nibbles(e, e.load(e.address(panel, (quad.index, 64), 32 * h), ir.VectorType(INT8, 32)))
            for row, base in enumerate(rows):
                x = _four(e, e.address(base, (quad.index, 4)), 32)
                for nibble in range(2):
                    b.store(_pairs(e, b.load(shorts[row][nibble]), nibbles[nibble], x), shorts[row][nibble])
        for row, (low, high) in enumerate(shorts):
            total = b.add(_widen(e, b.load(low), 1 << shift), _widen(e, b.load(high), 16 << shift))
            sums[row].append(total)
    return sums


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
