"""Threads that compute one step together: parts of the work are claimed, and every phase ends at a barrier.

A barrier costs about the time of a line of cache from core to core. Who waits spins for a while, for another thread is
at work on the same phase; then it sleeps in the kernel (a futex), so that a thread that lost its core to somebody can
have this one. Between steps helpers sleep too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled
from .vector_ir import INT32, INT64, Emitter

_ARRIVED, _RELEASED, _CLAIMED, _SLEEPING, _PATIENCE = 0, 8, 16, 24, 32
"""Words of the shared state, each on a line of its own: arrivals of all time, barriers passed, parts claimed, threads
that sleep at a barrier, and how long one spins before that."""
STATE_WORDS = 40
_LONGEST_SPIN, _SHORTEST_SPIN = 400_000, 12_500
"""Of the processor's counter, some 160 and 5 us: longer than threads are apart at the end of a phase if each has a
core; and next to nothing, where another process has one of them and waits last for milliseconds."""
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

    else:

        def typed(context, state, place, value):
            return types.int64(state, types.int64, types.int64), codegen

    typed.__name__ = name
    return intrinsic(typed)


def _pointer(e: Emitter, data: ir.Value, place: ir.Value) -> ir.Value:
    return e.builder.inttoptr(e.address(data, (place, 8)), INT64.as_pointer())


def _write_add(e: Emitter, data: ir.Value, place: ir.Value, value: ir.Value) -> ir.Value:
    return e.builder.atomic_rmw("add", _pointer(e, data, place), value, "seq_cst")


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
def claim(state):
    """The next part of the phase, 0, 1, 2, ... over all threads."""
    return _add(state, _CLAIMED, 1)


@compiled
def barrier(state, num_threads):
    """Returns when all threads are here; parts are counted from 0 again."""
    if num_threads == 1:
        _set(state, _CLAIMED, 0)
        return
    passed = _get(state, _RELEASED)
    if _add(state, _ARRIVED, 1) + 1 == (passed + 1) * num_threads:
        _set(state, _CLAIMED, 0)
        _add(state, _RELEASED, 1)
        if _get(state, _SLEEPING):
            _wake(state, _RELEASED)
        return
    since, patience = clock(), _get(state, _PATIENCE)
    while clock() - since < patience:
        if _get(state, _RELEASED) != passed:
            return
        _pause()
    _add(state, _SLEEPING, 1)
    while _get(state, _RELEASED) == passed:
        _wait(state, _RELEASED, passed)
    _add(state, _SLEEPING, -1)
    if clock() - since < 2 * _LONGEST_SPIN:
        _set(state, _PATIENCE, min(2 * patience, _LONGEST_SPIN))
    else:
        _set(state, _PATIENCE, max(patience // 2, _SHORTEST_SPIN))


class Team:
    """`num_threads` threads, the caller's own among them."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.state = np.zeros(STATE_WORDS, np.int64)
        self.state[_PATIENCE] = _LONGEST_SPIN
        self._work: Callable[[int], None] | None = None
        self._bells = [os.eventfd(0) for _ in range(num_threads - 1)]
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._help, args=(index + 1, bell), daemon=True, name=f"compute-{index + 1}")
            for index, bell in enumerate(self._bells)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[int], None]) -> None:
        """Call work(index) in every thread; it must pass the same barriers in each and end with one."""
        self._work = work
        for bell in self._bells:
            os.eventfd_write(bell, 1)
        work(0)

    def close(self) -> None:
        """End the helpers."""
        self._is_closed = True
        for bell, thread in zip(self._bells, self._threads, strict=True):
            os.eventfd_write(bell, 1)
            thread.join()
            os.close(bell)

    def _help(self, index: int, bell: int) -> None:
        while True:
            os.eventfd_read(bell)
            if self._is_closed:
                return
            assert self._work is not None
            self._work(index)
