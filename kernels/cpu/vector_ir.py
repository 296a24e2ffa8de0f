"""A few words of LLVM's language, for kernels whose registers we choose ourselves.

numba compiles loops well, but it has no type for a vector register; what needs one is written as an intrinsic with
these. Addresses are plain integers (intp), offsets are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from inspect import Parameter, Signature
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
HALF, FLOAT = ir.HalfType(), ir.FloatType()


class Emitter:
    """Writes instructions behind the builder's position."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def const(self, value: int) -> ir.Value:
        return ir.Constant(INT64, value)

    def address(self, base: ir.Value, *terms: ir.Value | int | tuple[ir.Value, int]) -> ir.Value:
        """base + the sum of the terms; a pair is a product."""
        for term in terms:
            if isinstance(term, tuple):
                term = self.builder.mul(term[0], self.const(term[1]))
            elif isinstance(term, int):
                if not term:
                    continue
                term = self.const(term)
            base = self.builder.add(base, term)
        return base

    def load(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        """Unaligned."""
        value = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        value.align = 1
        return value

    def store(self, value: ir.Value, address: ir.Value) -> None:
        """Unaligned."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer())).align = 1

    def splat(self, value: ir.Value, count: int) -> ir.Value:
        """The scalar in each lane."""
        undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
        first = self.builder.insert_element(undefined, value, ir.Constant(INT32, 0))
        zeros = ir.Constant(ir.VectorType(INT32, count), [0] * count)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def vector(self, element: ir.Type, count: int, value: float) -> ir.Value:
        """A constant in each lane."""
        return ir.Constant(ir.VectorType(element, count), [value] * count)

    def call(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """An LLVM intrinsic or a function of the C library."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x y + z"""
        return self.call(f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)

    def fold(self, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """All lanes in one number: the lower half with the upper one, and so on. The count is a power of two."""
        return self.builder.extract_element(self._fold_to(value, 1, combine), ir.Constant(INT32, 0))

    def _fold_to(self, value: ir.Value, lanes: int, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        width = value.type.count
        while width > lanes:
            width //= 2
            halves = (ir.Constant(ir.VectorType(INT32, width), list(range(at, at + width))) for at in (0, width))
            value = combine(*[self.builder.shuffle_vector(value, value, half) for half in halves])
        return value

    def sums_of_lanes(self, values: Sequence[ir.Value]) -> ir.Value:
        """Of 1, 2 or 4 float32 vectors: a vector of 4, of which lane i is the sum of values[i]. Neighbours are added,
        then neighbouring sums, then quarters of the register: what a sum is does not depend on how many there are."""
        lanes = values[0].type.count
        for _ in range(2):
            pairs = list(zip(values[::2], values[1::2], strict=True)) if len(values) > 1 else [(values[0], values[0])]
            values = [self._add_neighbours(x, y, lanes) for x, y in pairs]
        return self._fold_to(values[0], 4, self.builder.fadd)

    def _add_neighbours(self, x: ir.Value, y: ir.Value, lanes: int) -> ir.Value:
        """In each four lanes: two sums of x, then two of y."""
        even = [
            4 * quad + lane + lanes * source for quad in range(lanes // 4) for source in range(2) for lane in (0, 2)
        ]
        first, second = (
            self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(INT32, lanes), [lane + odd for lane in even]))
            for odd in range(2)
        )
        return self.builder.fadd(first, second)

    def larger(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """Of floats, lane by lane."""
        return self.builder.select(self.builder.fcmp_ordered(">", x, y), x, y)

    def variable(self, value: ir.Value) -> ir.Value:
        """A place that holds `value` at first; a register, after optimisation."""
        return cgutils.alloca_once_value(self.builder, value)

    def opaque(self, value: int) -> ir.Value:
        """A number that the compiler does not know: a loop of so many rounds stays one, and its order. Unrolled, sums
        of integers are rearranged until the registers do not suffice."""
        kind = ir.FunctionType(INT64, [INT64])
        return self.builder.asm(kind, "", "=r,0", [self.const(value)], False)

    def loop(self, count: ir.Value) -> AbstractContextManager[cgutils.Loop]:
        """`with e.loop(n) as loop:` runs what is written inside for loop.index = 0 .. n - 1."""
        return cgutils.for_range(self.builder, count, intp=INT64)

    def tiles(self, count: ir.Value, sizes: Sequence[int], write: Callable[[int, ir.Value], None]) -> None:
        """Cover 0 .. count - 1 with tiles, the largest sizes first (the last is 1): `write(size, first)` writes one."""
        first = self.const(0)
        for size in sizes:
            num_tiles = self.builder.udiv(self.builder.sub(count, first), self.const(size))
            with self.loop(num_tiles) as loop:
                write(size, self.address(first, (loop.index, size)))
            first = self.address(first, (num_tiles, size))


def kernel(num_arguments: int, write: Callable[..., None]) -> Callable[..., None]:
    """A function of `num_arguments` integers, callable from compiled code; `write(emitter, *arguments)` writes it."""

    def codegen(context, builder, _signature, arguments):
        write(Emitter(builder), *arguments)
        return context.get_dummy_value()

    signature = types.void(*[types.intp] * num_arguments)

    def typed(context, *_types):
        return signature, codegen

    names = ("context", *(f"a{index}" for index in range(num_arguments)))  # numba asks for named arguments
    typed.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])
    return intrinsic(typed)


class Native(NamedTuple):
    """A function that is compiled on its own, and called at its address (a `caller`).

    Compiled into every caller, as numba does, tiles would take most of a minute.
    """

    function: Callable[..., None]
    signature: object


def native(num_arguments: int) -> Callable[[Callable[..., None]], Native]:
    """Of `num_arguments` integers."""
    signature = types.void(*[types.intp] * num_arguments)
    return lambda function: Native(function, signature)


def caller(num_arguments: int) -> Callable[..., None]:
    """A function (address, *integers) for compiled code that calls what lies at the address."""

    def write(e: Emitter, address, *arguments) -> None:
        kind = ir.FunctionType(ir.VoidType(), [INT64] * num_arguments)
        e.builder.call(e.builder.inttoptr(address, kind.as_pointer()), arguments)

    return kernel(num_arguments + 1, write)
