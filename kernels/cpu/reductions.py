"""Sums and maxima of float32 numbers in one fixed order: 16 lanes side by side, their halves folded, then what is left.

A loop that adds is left in its order by the compiler, and so without vectors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vector_ir import FLOAT, INT32, Emitter

_LANES = 16
_Step = Callable[[Emitter, ir.Value, ir.Value], ir.Value]
"""(emitter, result so far, numbers) -> result; both are scalars, or vectors of so many lanes."""


def _reduction(first: float, step: _Step, fold: _Step) -> Callable[[int, int], np.float32]:
    """Compiled code calls it with (address, size)."""

    def codegen(context, builder, signature, arguments):
        e = Emitter(builder)
        address, size = arguments
        whole = e.variable(e.vector(FLOAT, _LANES, first))
        num_vectors = builder.udiv(size, e.const(_LANES))
        with e.loop(num_vectors) as loop:
            numbers = e.load(e.address(address, (loop.index, 4 * _LANES)), ir.VectorType(FLOAT, _LANES))
            builder.store(step(e, builder.load(whole), numbers), whole)
        total = e.variable(e.fold(builder.load(whole), lambda x, y: fold(e, x, y)))
        rest = e.address(address, (num_vectors, 4 * _LANES))
        with e.loop(builder.urem(size, e.const(_LANES))) as loop:
            number = e.load(e.address(rest, (loop.index, 4)), FLOAT)
            builder.store(step(e, builder.load(total), number), total)
        return builder.load(total)

    def typed(context, address, size):
        return types.float32(types.intp, types.intp), codegen

    return intrinsic(typed)


def _add(e: Emitter, total: ir.Value, x: ir.Value) -> ir.Value:
    return e.builder.fadd(total, x)


def _add_square(e: Emitter, total: ir.Value, x: ir.Value) -> ir.Value:
    return e.builder.fadd(total, e.builder.fmul(x, x))


def _larger(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    return e.larger(x, y)


def _larger_magnitude(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Compared as integers: what is no number is the largest of all."""
    b = e.builder
    one, other = _magnitude(e, x), _magnitude(e, y)
    return b.bitcast(b.select(b.icmp_signed(">", one, other), one, other), x.type)


def _magnitude(e: Emitter, x: ir.Value) -> ir.Value:
    mask = 0x7FFFFFFF
    if isinstance(x.type, ir.VectorType):
        count = x.type.count
        return e.builder.and_(e.builder.bitcast(x, ir.VectorType(INT32, count)), e.vector(INT32, count, mask))
    return e.builder.and_(e.builder.bitcast(x, INT32), ir.Constant(INT32, mask))


sum_of = _reduction(0.0, _add, _add)
sum_of_squares = _reduction(0.0, _add_square, _add)
largest_of = _reduction(-np.inf, _larger, _larger)
largest_magnitude_of = _reduction(0.0, _larger_magnitude, _larger_magnitude)
"""NaN if one is."""
