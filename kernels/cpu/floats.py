"""float32 arithmetic that the compiler turns into vectors: a library's exp would be called number by number."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .compiled import compiled, inlined
from .vector_ir import FLOAT, INT32, Emitter

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)
_C5, _C4, _C3, _C2, _C1 = (
    np.float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)
)
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)
_GELU, _CUBE = np.float32(0.7978845608028654), np.float32(0.044715)


@intrinsic
def _float_of_bits(context, bits):
    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), codegen


def _pointer_to(element, kind):
    def typed(context, address):
        def codegen(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], kind.as_pointer())

        return types.CPointer(element)(types.int64), codegen

    return intrinsic(typed)


_to_floats, _to_bytes, _to_words = (
    _pointer_to(element, kind)
    for element, kind in ((types.float32, FLOAT), (types.uint8, ir.IntType(8)), (types.uint16, ir.IntType(16)))
)


@compiled
def floats_at(address, size):
    """The float32 array [size] that lies there."""
    return carray(_to_floats(address), size)


@compiled
def bytes_at(address, size):
    """The uint8 array [size] that lies there."""
    return carray(_to_bytes(address), size)


@compiled
def words_at(address, size):
    """The uint16 array [size] that lies there."""
    return carray(_to_words(address), size)


@intrinsic
def widen_half(context, value):
    """float32 of the 16 bits of a float16 (uint16)."""

    def codegen(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), FLOAT)

    return types.float32(types.uint16), codegen


@intrinsic
def widen(context, value):
    """float32 of a float32, or of the 16 bits of a bfloat16 (uint16)."""
    is_float = value == types.float32

    def codegen(context, builder, signature, arguments):
        if is_float:
            return arguments[0]
        word = builder.shl(builder.zext(arguments[0], INT32), ir.Constant(INT32, 16))
        return builder.bitcast(word, FLOAT)

    return types.float32(value), codegen


@intrinsic
def narrow(context, like, value):
    """A float32 as an element of `like`'s kind: itself, or the bits of the nearest bfloat16, ties to even."""
    is_float = like == types.float32

    def codegen(context, builder, signature, arguments):
        if is_float:
            return arguments[1]
        word = builder.bitcast(arguments[1], INT32)
        one = ir.Constant(INT32, 1)
        odd = builder.and_(builder.lshr(word, ir.Constant(INT32, 16)), one)
        rounded = builder.add(word, builder.add(odd, ir.Constant(INT32, 0x7FFF)))
        return builder.trunc(builder.lshr(rounded, ir.Constant(INT32, 16)), ir.IntType(16))

    return like(like, types.float32), codegen


@intrinsic
def fma(context, x, y, z):
    """x y + z, rounded once; float32"""

    def codegen(context, builder, signature, arguments):
        return Emitter(builder).call("llvm.fma.f32", FLOAT, *arguments)

    return types.float32(types.float32, types.float32, types.float32), codegen


@inlined
def exp(x):
    """e^x of a float32, to 5 units in the last place; from -87 to 88, beyond it what it is there.

    Source: the polynomial of Cephes' expf (Moshier).
    """
    x = min(max(x, _LOWEST), _HIGHEST)
    n = np.floor(fma(x, _LOG2_E, _HALF))
    r = fma(-n, _LN2_LOW, fma(-n, _LN2_HIGH, x))
    p = fma(fma(fma(fma(fma(_C5, r, _C4), r, _C3), r, _C2), r, _C1), r, _HALF)
    power = _float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))
    return (fma(p, r * r, r) + _ONE) * power


@inlined
def silu(x):
    """x / (1 + e^-x)"""
    return x / (_ONE + exp(-x))


@inlined
def gelu_tanh(x):
    """x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³))), which is x / (1 + e^-2y) of the tangent's y"""
    inner = _GELU * (x + _CUBE * x * x * x)
    return x / (_ONE + exp(-_TWO * inner))
