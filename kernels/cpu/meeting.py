"""A phase of a team, in compiled code: who takes part, which parts are claimed, the barrier at its end (`team`)."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled
from .team import (
    ARRIVAL,
    CLAIMED,
    LONGEST_SPIN,
    MEETING,
    MEMBER,
    OWN,
    PATIENCE,
    PHASE_BITS,
    SHORTEST_SPIN,
    SIZE,
    SLEEPING,
    WORDS_OF_THREAD,
)
from .vector_ir import INT32, INT64, Emitter

_NO_PART = 1 << 40
"""Claimed by who takes no part: behind the last one of any phase."""
_FUTEX, _WAIT, _WAKE, _ALL = 202, 128, 129, 1 << 30
"""Linux on x86-64: the system call, its private operations, how many to wake."""


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


def _write_wait(e: Emitter, data: ir.Value, place: ir.Value, value: ir.Value) -> ir.Value:
    """Sleep while the word's lower half is `value`'s; may return without cause."""
    b = e.builder
    futex = cgutils.get_or_insert_function(b.module, ir.FunctionType(INT64, [INT64], var_arg=True), "syscall")
    address, half = e.address(data, (place, 8)), b.trunc(value, INT32)
    return b.call(futex, [e.const(_FUTEX), address, e.const(_WAIT), half, e.const(0)])


def _write_wake(e: Emitter, data: ir.Value, place: ir.Value) -> ir.Value:
    b = e.builder
    futex = cgutils.get_or_insert_function(b.module, ir.FunctionType(INT64, [INT64], var_arg=True), "syscall")
    return b.call(futex, [e.const(_FUTEX), e.address(data, (place, 8)), e.const(_WAKE), e.const(_ALL)])


_wait = _word("wait", _write_wait, 2)
_wake = _word("wake", _write_wake, 1)
_add = _word("add", _write_add, 2)
_get = _word("get", _write_get, 1)
_set = _word("set", _write_set, 2)
_swap = _word("swap", _write_swap, 3)


@intrinsic
def _pause(context):
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


@compiled
def _own(thread):
    return OWN + thread * WORDS_OF_THREAD


@compiled
def _takes_part(state, thread):
    """Joins the phase that the thread is in, unless that is over; of one that is about to be it awaits the end."""
    own = _own(thread)
    if state[own + 1]:
        return True
    while True:
        meeting = _get(state, MEETING)
        if meeting & PHASE_BITS != state[own]:
            return False
        if (meeting >> 32) & 0xFFFF == meeting >> 48:
            _pause()
        elif _swap(state, MEETING, meeting, meeting + MEMBER):
            state[own + 1] = 1
            return True


@compiled
def claim(state, thread):
    """The next part of the phase, 0, 1, 2, ... over all threads that take part; for others one that no phase has."""
    return _add(state, CLAIMED, 1) if _takes_part(state, thread) else _NO_PART


@compiled
def num_threads_of(state):
    return state[SIZE]


@compiled
def barrier(state, thread):
    """Returns when all threads that take part are here; parts are counted from 0 again."""
    own = _own(thread)
    phase = state[own]
    state[own] = (phase + 1) & PHASE_BITS
    if not state[own + 1]:
        return
    meeting = _add(state, MEETING, ARRIVAL) + ARRIVAL
    num_members = (meeting >> 32) & 0xFFFF
    if meeting >> 48 == num_members:
        _set(state, CLAIMED, 0)
        _add(state, MEETING, num_members * MEMBER + state[own] - meeting)
        if _get(state, SLEEPING):
            _wake(state, MEETING)
        return
    since, patience = clock(), _get(state, PATIENCE)
    while clock() - since < patience:
        if _get(state, MEETING) & PHASE_BITS != phase:
            return
        _pause()
    _add(state, SLEEPING, 1)
    while _get(state, MEETING) & PHASE_BITS == phase:
        _wait(state, MEETING, phase)
    _add(state, SLEEPING, -1)
    if clock() - since < 2 * LONGEST_SPIN:
        _set(state, PATIENCE, min(2 * patience, LONGEST_SPIN))
    else:
        _set(state, PATIENCE, max(patience // 2, SHORTEST_SPIN))
