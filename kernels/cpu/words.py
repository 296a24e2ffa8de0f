"""Words that threads or processes share, in compiled code: atomic operations, whose order is that of the source, and
sleep in the kernel until one changes (a futex)."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector_ir import INT32, INT64, Emitter

_FUTEX, _WAIT, _WAKE, _OF_THREADS, _ALL = 202, 0, 1, 128, 1 << 30
"""Linux on x86-64: the system call, its operations, the mark of those within one process, how many to wake."""
_SECOND_NS = 1_000_000_000


def _word(name: str, write: Callable[..., ir.Value], num_arguments: int) -> Callable[..., int]:
    """An intrinsic (state: int64 array, *int64) -> int64 on the array's data."""

    def codegen(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return write(Emitter(builder), builder.ptrtoint(array.data, INT64), *arguments[1:])

    if num_arguments == 1:

        def typed(context, state, place):
            return types.int64(state, types.int64), codegen

    elif num_arguments == 2:

        def typed(context, state, place, value):
            return types.int64(state, types.int64, types.int64), codegen

    else:

        def typed(context, state, place, expected, value):
            return types.int64(state, types.int64, types.int64, types.int64), codegen

    typed.__name__ = name
    return intrinsic(typed)


def _pointer(e: Emitter, data: ir.Value, place: ir.Value) -> ir.Value:
    return e.builder.inttoptr(e.address(data, (place, 8)), INT64.as_pointer())


def _write_add(e: Emitter, data: ir.Value, place: ir.Value, value: ir.Value) -> ir.Value:
    return e.builder.atomic_rmw("add", _pointer(e, data, place), value, "seq_cst")


def _write_swap(e: Emitter, data: ir.Value, place: ir.Value, expected: ir.Value, value: ir.Value) -> ir.Value:
    """1 if the word was `expected`, and is `value` now; 0: it is what it was."""
    b = e.builder
    found = b.cmpxchg(_pointer(e, data, place), expected, value, "seq_cst", "seq_cst")
    return b.zext(b.extract_value(found, 1), INT64)


def _write_get(e: Emitter, data: ir.Value, place: ir.Value) -> ir.Value:
    return e.builder.load_atomic(_pointer(e, data, place), "seq_cst", 8)


def _write_set(e: Emitter, data: ir.Value, place: ir.Value, value: ir.Value) -> ir.Value:
    e.builder.store_atomic(value, _pointer(e, data, place), "release", 8)
    return value


def _futex(e: Emitter, *arguments: ir.Value) -> ir.Value:
    kind = ir.FunctionType(INT64, [INT64], var_arg=True)
    system_call = cgutils.get_or_insert_function(e.builder.module, kind, "syscall")
    return e.builder.call(system_call, [e.const(_FUTEX), *arguments])


def _write_wait(e: Emitter, data: ir.Value, place: ir.Value, value: ir.Value) -> ir.Value:
    """Sleep while the word's lower half is `value`'s; may return without cause."""
    half = e.builder.trunc(value, INT32)
    return _futex(e, e.address(data, (place, 8)), e.const(_WAIT | _OF_THREADS), half, e.const(0))


def _write_wake(e: Emitter, data: ir.Value, place: ir.Value) -> ir.Value:
    return _futex(e, e.address(data, (place, 8)), e.const(_WAKE | _OF_THREADS), e.const(_ALL))


def _write_wait_shared(e: Emitter, data: ir.Value, place: ir.Value, value: ir.Value, timeout_ns: ir.Value) -> ir.Value:
    """As `wait`, for a word that processes share, and not longer than the timeout."""
    b, second = e.builder, e.const(_SECOND_NS)
    timeout = cgutils.alloca_once(b, ir.ArrayType(INT64, 2))
    address = b.ptrtoint(timeout, INT64)
    e.store(b.sdiv(timeout_ns, second), address)
    e.store(b.srem(timeout_ns, second), e.address(address, 8))
    return _futex(e, e.address(data, (place, 8)), e.const(_WAIT), b.trunc(value, INT32), address)


def _write_wake_shared(e: Emitter, data: ir.Value, place: ir.Value) -> ir.Value:
    return _futex(e, e.address(data, (place, 8)), e.const(_WAKE), e.const(_ALL))


wait = _word("wait", _write_wait, 2)
wake = _word("wake", _write_wake, 1)
wait_shared = _word("wait_shared", _write_wait_shared, 3)
wake_shared = _word("wake_shared", _write_wake_shared, 1)
add = _word("add", _write_add, 2)
get = _word("get", _write_get, 1)
put = _word("put", _write_set, 2)
swap = _word("swap", _write_swap, 3)


@intrinsic
def pause(context):
    """What a loop that waits for a word tells the processor."""

    def codegen(context, builder, signature, arguments):
        Emitter(builder).call("llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def clock(context):
    """The processor's counter of time, in its own units."""

    def codegen(context, builder, signature, arguments):
        return Emitter(builder).call("llvm.readcyclecounter", INT64)

    return types.int64(), codegen
