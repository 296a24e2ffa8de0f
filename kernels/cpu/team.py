"""Threads that compute one step together: parts of the work are claimed, and every phase ends at a barrier.

A barrier costs about the time of a line of cache from core to core. Who waits spins for a while, for another thread is
at work on the same phase; then it sleeps in the kernel (a futex), so that a thread that lost its core to somebody can
have this one. Between steps helpers sleep too.

A phase waits for those who take part in it. The caller of a run does from the start; a helper joins in the first phase
of which it claims a part, and stays to the end. One that is late, because its core was busy with another process,
walks through the phases that are over without touching anything; one that is too late for all is not missed.
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

_MEETING, _CLAIMED, _SLEEPING, _PATIENCE, _SIZE, _OWN = 0, 8, 16, 24, 32, 40
"""Words of the shared state, each on a line of its own: the meeting; parts claimed; threads that sleep at a barrier;
how long one spins before that; threads of the team; and from the last on two words for each thread, the phase that it
is in and whether it takes part.

The meeting is one word, so that nobody can join a phase while it ends: the phase's number in the lower half (what
sleepers sleep on), above it how many take part, 16 bits, and how many of them have arrived at its end.
"""
_WORDS_OF_THREAD = 8
_PHASE_BITS, _MEMBER, _ARRIVAL = 0xFFFFFFFF, 1 << 32, 1 << 48
_NO_PART = 1 << 40
"""Claimed by who takes no part: behind the last one of any phase."""
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
    return _OWN + thread * _WORDS_OF_THREAD


@compiled
def _takes_part(state, thread):
    """Joins the phase that the thread is in, unless that is over; of one that is about to be it awaits the end."""
    own = _own(thread)
    if state[own + 1]:
        return True
    while True:
        meeting = _get(state, _MEETING)
        if meeting & _PHASE_BITS != state[own]:
            return False
        if (meeting >> 32) & 0xFFFF == meeting >> 48:
            _pause()
        elif _swap(state, _MEETING, meeting, meeting + _MEMBER):
            state[own + 1] = 1
            return True


@compiled
def claim(state, thread):
    """The next part of the phase, 0, 1, 2, ... over all threads that take part; for others one that no phase has."""
    return _add(state, _CLAIMED, 1) if _takes_part(state, thread) else _NO_PART


@compiled
def num_threads_of(state):
    return state[_SIZE]


@compiled
def barrier(state, thread):
    """Returns when all threads that take part are here; parts are counted from 0 again."""
    own = _own(thread)
    phase = state[own]
    state[own] = (phase + 1) & _PHASE_BITS
    if not state[own + 1]:
        return
    meeting = _add(state, _MEETING, _ARRIVAL) + _ARRIVAL
    num_members = (meeting >> 32) & 0xFFFF
    if meeting >> 48 == num_members:
        _set(state, _CLAIMED, 0)
        _add(state, _MEETING, num_members * _MEMBER + state[own] - meeting)
        if _get(state, _SLEEPING):
            _wake(state, _MEETING)
        return
    since, patience = clock(), _get(state, _PATIENCE)
    while clock() - since < patience:
        if _get(state, _MEETING) & _PHASE_BITS != phase:
            return
        _pause()
    _add(state, _SLEEPING, 1)
    while _get(state, _MEETING) & _PHASE_BITS == phase:
        _wait(state, _MEETING, phase)
    _add(state, _SLEEPING, -1)
    if clock() - since < 2 * _LONGEST_SPIN:
        _set(state, _PATIENCE, min(2 * patience, _LONGEST_SPIN))
    else:
        _set(state, _PATIENCE, max(patience // 2, _SHORTEST_SPIN))


class Team:
    """`num_threads` threads, the caller's own among them."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.state = np.zeros(_OWN + num_threads * _WORDS_OF_THREAD, np.int64)
        self.state[_PATIENCE], self.state[_SIZE] = _LONGEST_SPIN, num_threads
        self._run: tuple[Callable[[int], None], int] | None = None
        """What is run, and the number of its first phase."""
        self._bells = [os.eventfd(0) for _ in range(num_threads - 1)]
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._help, args=(index + 1, bell), daemon=True, name=f"compute-{index + 1}")
            for index, bell in enumerate(self._bells)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Callable[[int], None]) -> None:
        """Call work(index) here with 0, and in each helper that comes in time; it must pass the same barriers in each
        and end with one. A helper that is late may still be inside it after the return, and touches nothing."""
        phase = int(self.state[_MEETING]) & _PHASE_BITS
        self.state[_MEETING] = phase | _MEMBER
        self._run = work, phase
        for bell in self._bells:
            os.eventfd_write(bell, 1)
        self._enter(0, work, phase, takes_part=True)

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
            assert self._run is not None
            self._enter(index, *self._run, takes_part=False)

    def _enter(self, index: int, work: Callable[[int], None], phase: int, *, takes_part: bool) -> None:
        own = _OWN + index * _WORDS_OF_THREAD
        self.state[own], self.state[own + 1] = phase, takes_part
        work(index)
