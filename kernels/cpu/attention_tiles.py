"""The innermost loops of decoding: queries of some heads against keys and values where they lie in the cache."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .isa import Isa
from .panels import HOST
from .tiles import PANEL, load_floats
from .vector_ir import FLOAT, INT8, INT32, Emitter, caller, kernel, native


def score_tile(isa: Isa, bits: int, num_heads: int) -> Callable[..., None]:
    """Writes code for (q, q_stride, keys, num_keys, head_dim, scores, scores_stride): the dot
    products of float32 q [num_heads, head_dim] with keys [num_keys, head_dim] of 32 or 16 bits (bfloat16): float32
    [num_heads, num_keys]. Strides in bytes."""
    lanes = isa.lanes
    halves = range(PANEL // lanes)

    def write(e: Emitter, q, q_stride, keys, num_keys, head_dim, scores, scores_stride) -> None:
        b = e.builder
        num_panels = b.udiv(head_dim, e.const(PANEL))
        heads = [e.address(q, (q_stride, head)) for head in range(num_heads)]
        with e.loop(num_keys) as each:
            key = e.address(keys, b.mul(each.index, b.mul(head_dim, e.const(bits // 8))))
            totals = [e.variable(e.vector(FLOAT, lanes, 0.0)) for _ in heads]
            with e.loop(num_panels) as panel:
                for h in halves:
                    at = e.address(key, (panel.index, PANEL * bits // 8), bits // 8 * lanes * h)
                    values = load_floats(e, at, bits, lanes)
                    for head, total in zip(heads, totals, strict=True):
                        query = e.load(e.address(head, (panel.index, 4 * PANEL), 4 * lanes * h), values.type)
                        b.store(e.fma(values, query, b.load(total)), total)
            for head, total in enumerate(totals):
                value = e.fold(b.load(total), b.fadd)
                e.store(value, e.address(scores, (scores_stride, head), (each.index, 4)))

    return write


def value_tile(isa: Isa, bits: int, num_heads: int) -> Callable[..., None]:
    """Writes code for (weights, weights_stride, values, num_keys, head_dim, out, out_stride):
    out [num_heads, head_dim] += weights [num_heads, num_keys] values; as `score_tile`."""
    lanes = isa.lanes
    halves = range(PANEL // lanes)

    def write(e: Emitter, weights, weights_stride, values, num_keys, head_dim, out, out_stride) -> None:
        b = e.builder
        num_panels = b.udiv(head_dim, e.const(PANEL))
        lines = [e.address(weights, (weights_stride, head)) for head in range(num_heads)]
        floats = ir.VectorType(FLOAT, lanes)
        with e.loop(num_panels) as panel:
            places = [
                [e.address(out, (out_stride, head), (panel.index, 4 * PANEL), 4 * lanes * h) for h in halves]
                for head in range(num_heads)
            ]
            totals = [[e.variable(e.load(place, floats)) for place in row] for row in places]
            base = e.address(values, (panel.index, PANEL * bits // 8))
            with e.loop(num_keys) as each:
                at = e.address(base, b.mul(each.index, b.mul(head_dim, e.const(bits // 8))))
                parts = [load_floats(e, e.address(at, bits // 8 * lanes * h), bits, lanes) for h in halves]
                for line, row in zip(lines, totals, strict=True):
                    weight = e.splat(e.load(e.address(line, (each.index, 4)), FLOAT), lanes)
                    for part, total in zip(parts, row, strict=True):
                        b.store(e.fma(weight, part, b.load(total)), total)
            for row, to in zip(totals, places, strict=True):
                for total, place in zip(row, to, strict=True):
                    e.store(b.load(total), place)

    return write


def _write_fetch(e: Emitter, address) -> None:
    pointer = e.builder.inttoptr(address, INT8.as_pointer())
    read, keep, data = (ir.Constant(INT32, value) for value in (0, 3, 1))
    e.call("llvm.prefetch.p0", ir.VoidType(), pointer, read, keep, data)


fetch_line = kernel(1, _write_fetch)
"""(address): ask for a line of cache."""
call_tile = caller(8)
"""(address of one of the four below, its arguments)"""


def _of_heads(tile: Callable[[Isa, int, int], Callable[..., None]], bits: int) -> Callable[..., None]:
    """For any number of heads: (x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads)"""

    def write(e: Emitter, x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads) -> None:
        def some(size: int, first: ir.Value) -> None:
            rows, out = (
                e.address(base, e.builder.mul(first, stride)) for base, stride in ((x, x_stride), (y, y_stride))
            )
            tile(HOST, bits, size)(e, rows, x_stride, cache, num_keys, head_dim, out, y_stride)

        e.tiles(num_heads, (4, 3, 2, 1), some)

    return kernel(8, write)


_score_floats, _score_halves = (_of_heads(score_tile, bits) for bits in (32, 16))
_sum_floats, _sum_halves = (_of_heads(value_tile, bits) for bits in (32, 16))


@native(8)
def score_float32(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads):
    _score_floats(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads)


@native(8)
def score_bfloat16(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads):
    _score_halves(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads)


@native(8)
def sum_float32(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads):
    _sum_floats(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads)


@native(8)
def sum_bfloat16(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads):
    _sum_halves(x, x_stride, cache, num_keys, head_dim, y, y_stride, num_heads)
