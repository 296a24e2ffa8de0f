"""The innermost loops of decoding: queries of some heads against keys and values where they lie in the cache."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .isa import Isa
from .panels import HOST
from .tiles import PANEL, load_floats
from .vector_ir import FLOAT, INT8, INT32, Emitter, caller, kernel, native

_LINE = 64
"""Bytes of a line of cache."""


def score_tile(isa: Isa, bits: int, num_heads: int) -> Callable[..., None]:
    """Writes code for (q, q_stride, keys, num_keys, head_dim, ahead, scores, scores_stride): the dot
    products of float32 q [num_heads, head_dim] with keys [num_keys, head_dim] of 32 or 16 bits (bfloat16): float32
    [num_heads, num_keys]. Strides in bytes. What lies at `ahead`, as many bytes as the keys, is fetched meanwhile."""
    lanes = isa.lanes
    keys_at_once = 4 if num_heads <= 3 or isa is Isa.VNNI else 2
    """As many as there are registers for."""

    def write(e: Emitter, q, q_stride, keys, num_keys, head_dim, ahead, scores, scores_stride) -> None:
        b = e.builder
        key_bytes = b.mul(head_dim, e.const(bits // 8))
        num_vectors = b.udiv(head_dim, e.const(lanes))
        heads = [e.address(q, (q_stride, head)) for head in range(num_heads)]

        def some(size: int, first: ir.Value) -> None:
            offset = b.mul(first, key_bytes)
            base = e.address(keys, offset)
            with e.loop(b.udiv(b.mul(key_bytes, e.const(size)), e.const(_LINE))) as line:
                _fetch(e, e.address(ahead, offset, (line.index, _LINE)))
            lines = [e.address(base, (key_bytes, key)) for key in range(size)]
            totals = [[e.variable(e.vector(FLOAT, lanes, 0.0)) for _ in lines] for _ in heads]
            with e.loop(num_vectors) as vector:
                queries = [
                    e.load(e.address(head, (vector.index, 4 * lanes)), ir.VectorType(FLOAT, lanes)) for head in heads
                ]
                for key, line in enumerate(lines):
                    values = load_floats(e, e.address(line, (vector.index, bits // 8 * lanes)), bits, lanes)
                    for query, row in zip(queries, totals, strict=True):
                        b.store(e.fma(values, query, b.load(row[key])), row[key])
            for head, row in enumerate(totals):
                sums = e.sums_of_lanes([b.load(total) for total in row])
                kept = ir.Constant(ir.VectorType(INT32, size), list(range(size)))
                e.store(b.shuffle_vector(sums, sums, kept), e.address(scores, (scores_stride, head), (first, 4)))

        e.tiles(num_keys, (keys_at_once, 1), some)

    return write


def value_tile(isa: Isa, bits: int, num_heads: int) -> Callable[..., None]:
    """Writes code for (weights, weights_stride, values, num_keys, head_dim, ahead, out, out_stride):
    out [num_heads, head_dim] += weights [num_heads, num_keys] values; as `score_tile`."""
    lanes = isa.lanes
    panels_at_once = 2 if num_heads <= 3 or isa is Isa.VNNI else 1
    """As many as there are registers for."""

    def write(e: Emitter, weights, weights_stride, values, num_keys, head_dim, ahead, out, out_stride) -> None:
        b = e.builder
        lines = [e.address(weights, (weights_stride, head)) for head in range(num_heads)]
        floats = ir.VectorType(FLOAT, lanes)
        key_bytes = b.mul(head_dim, e.const(bits // 8))

        def some(size: int, first: ir.Value) -> None:
            vectors = range(size * PANEL // lanes)
            places = [
                [e.address(out, (out_stride, head), (first, 4 * PANEL), 4 * lanes * v) for v in vectors]
                for head in range(num_heads)
            ]
            totals = [[e.variable(e.load(place, floats)) for place in row] for row in places]
            column = b.mul(first, e.const(PANEL * bits // 8))
            with e.loop(num_keys) as each:
                at, next_one = (e.address(base, column, b.mul(each.index, key_bytes)) for base in (values, ahead))
                for offset in range(0, size * PANEL * bits // 8, _LINE):
                    _fetch(e, e.address(next_one, offset))
                parts = [load_floats(e, e.address(at, bits // 8 * lanes * v), bits, lanes) for v in vectors]
                for line, row in zip(lines, totals, strict=True):
                    weight = e.splat(e.load(e.address(line, (each.index, 4)), FLOAT), lanes)
                    for part, total in zip(parts, row, strict=True):
                        b.store(e.fma(weight, part, b.load(total)), total)
            for row, to in zip(totals, places, strict=True):
                for total, place in zip(row, to, strict=True):
                    e.store(b.load(total), place)

        e.tiles(b.udiv(head_dim, e.const(PANEL)), tuple(range(panels_at_once, 0, -1)), some)

    return write


def _fetch(e: Emitter, address: ir.Value) -> None:
    """Ask for a line of cache."""
    pointer = e.builder.inttoptr(address, INT8.as_pointer())
    read, keep, data = (ir.Constant(INT32, value) for value in (0, 3, 1))
    e.call("llvm.prefetch.p0", ir.VoidType(), pointer, read, keep, data)


call_tile = caller(9)
"""(address of one of the four below, its arguments)"""


def _of_heads(tile: Callable[[Isa, int, int], Callable[..., None]], bits: int) -> Callable[..., None]:
    """For any number of heads: (x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads)"""

    def write(e: Emitter, x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads) -> None:
        def some(size: int, first: ir.Value) -> None:
            rows, out = (
                e.address(base, e.builder.mul(first, stride)) for base, stride in ((x, x_stride), (y, y_stride))
            )
            tile(HOST, bits, size)(e, rows, x_stride, cache, num_keys, head_dim, ahead, out, y_stride)

        e.tiles(num_heads, (4, 3, 2, 1), some)

    return kernel(9, write)


_score_floats, _score_halves = (_of_heads(score_tile, bits) for bits in (32, 16))
_sum_floats, _sum_halves = (_of_heads(value_tile, bits) for bits in (32, 16))


@native(9)
def score_float32(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads):
    _score_floats(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads)


@native(9)
def score_bfloat16(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads):
    _score_halves(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads)


@native(9)
def sum_float32(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads):
    _sum_floats(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads)


@native(9)
def sum_bfloat16(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads):
    _sum_halves(x, x_stride, cache, num_keys, head_dim, ahead, y, y_stride, num_heads)
