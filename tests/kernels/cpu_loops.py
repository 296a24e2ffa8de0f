"""Compiled loops for tests, in a module of one name, by which numba's cache finds them again."""

from __future__ import annotations

from callboard.kernels.cpu.compiled import compiled
from callboard.kernels.cpu.floats import exp, gelu_tanh, narrow, silu
from callboard.kernels.cpu.meeting import barrier, claim
from callboard.kernels.cpu.reductions import largest_magnitude_of, largest_of, sum_of, sum_of_squares

_MANY = 1 << 20
"""More than a thread can claim that takes part."""


@compiled
def apply_exp(x, out):
    for i in range(x.size):
        out[i] = exp(x[i])


@compiled
def apply_silu(x, out):
    for i in range(x.size):
        out[i] = silu(x[i])


@compiled
def apply_gelu(x, out):
    for i in range(x.size):
        out[i] = gelu_tanh(x[i])


@compiled
def narrow_all(x, out):
    for i in range(x.size):
        out[i] = narrow(out[i], x[i])


@compiled
def run_rounds(state, thread, num_rounds, marks, faults):
    """Every round marks each part once; behind the barrier every thread that takes part must see all marks of the
    round, and no later ones; others touch nothing. faults: int64 [2]: those, and rounds that it took part in."""
    for turn in range(1, num_rounds + 1):
        while True:
            part = claim(state, thread)
            if part >= marks.size:
                break
            if marks[part] != turn - 1:
                faults[0] += 1
            marks[part] = turn
        barrier(state, thread)
        takes_part = part < _MANY
        faults[1] += takes_part
        for part in range(marks.size):
            if marks[part] != turn and takes_part:
                faults[0] += 1
        barrier(state, thread)


@compiled
def total(x):
    return sum_of(x.ctypes.data, x.size)


@compiled
def total_of_squares(x):
    return sum_of_squares(x.ctypes.data, x.size)


@compiled
def largest(x):
    return largest_of(x.ctypes.data, x.size)


@compiled
def largest_magnitude(x):
    return largest_magnitude_of(x.ctypes.data, x.size)
