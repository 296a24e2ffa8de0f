"""A phase of a team, in compiled code: who takes part, which parts are claimed, the barrier at its end (`team`)."""

from __future__ import annotations

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
from .words import add, clock, get, pause, put, swap, wait, wake

_NO_PART = 1 << 40
"""Claimed by who takes no part: behind the last one of any phase."""


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
        meeting = get(state, MEETING)
        if meeting & PHASE_BITS != state[own]:
            return False
        if (meeting >> 32) & 0xFFFF == meeting >> 48:
            pause()
        elif swap(state, MEETING, meeting, meeting + MEMBER):
            state[own + 1] = 1
            return True


@compiled
def claim(state, thread):
    """The next part of the phase, 0, 1, 2, ... over all threads that take part; for others one that no phase has."""
    return add(state, CLAIMED, 1) if _takes_part(state, thread) else _NO_PART


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
    meeting = add(state, MEETING, ARRIVAL) + ARRIVAL
    num_members = (meeting >> 32) & 0xFFFF
    if meeting >> 48 == num_members:
        put(state, CLAIMED, 0)
        add(state, MEETING, num_members * MEMBER + state[own] - meeting)
        if get(state, SLEEPING):
            wake(state, MEETING)
        return
    since, patience = clock(), get(state, PATIENCE)
    while clock() - since < patience:
        if get(state, MEETING) & PHASE_BITS != phase:
            return
        pause()
    add(state, SLEEPING, 1)
    while get(state, MEETING) & PHASE_BITS == phase:
        wait(state, MEETING, phase)
    add(state, SLEEPING, -1)
    if clock() - since < 2 * LONGEST_SPIN:
        put(state, PATIENCE, min(2 * patience, LONGEST_SPIN))
    else:
        put(state, PATIENCE, max(patience // 2, SHORTEST_SPIN))
