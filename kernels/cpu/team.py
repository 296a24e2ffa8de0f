"""Threads that compute one step together: parts of the work are claimed, and every phase ends at a barrier.

A barrier costs about the time of a line of cache from core to core. Who waits spins for a while, for another thread is
at work on the same phase; then it sleeps in the kernel (a futex), so that a thread that lost its core to somebody can
have this one. Between steps helpers sleep too.

A phase waits for those who take part in it. The caller of a run does from the start; a helper joins in the first phase
of which it claims a part, and stays to the end. One that is late, because its core was busy with another process,
walks through the phases that are over without touching anything; one that is too late for all is not missed. What the
threads do at a phase and its end is `meeting`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np

MEETING, CLAIMED, SLEEPING, PATIENCE, SIZE, OWN = 0, 8, 16, 24, 32, 40
"""Words of the shared state, each on a line of its own: the meeting; parts claimed; threads that sleep at a barrier;
how long one spins before that; threads of the team; and from the last on two words for each thread, the phase that it
is in and whether it takes part.

The meeting is one word, so that nobody can join a phase while it ends: the phase's number in the lower half (what
sleepers sleep on), above it how many take part, 16 bits, and how many of them have arrived at its end.
"""
WORDS_OF_THREAD = 8
PHASE_BITS, MEMBER, ARRIVAL = 0xFFFFFFFF, 1 << 32, 1 << 48
LONGEST_SPIN, SHORTEST_SPIN = 400_000, 12_500
"""Of the processor's counter, some 160 and 5 us: longer than threads are apart at the end of a phase if each has a
core; and next to nothing, where another process has one of them and waits last for milliseconds."""


class Team:
    """`num_threads` threads, the caller's own among them."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.state = np.zeros(OWN + num_threads * WORDS_OF_THREAD, np.int64)
        self.state[PATIENCE], self.state[SIZE] = LONGEST_SPIN, num_threads
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
        phase = int(self.state[MEETING]) & PHASE_BITS
        self.state[MEETING] = phase | MEMBER
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
        own = OWN + index * WORDS_OF_THREAD
        self.state[own], self.state[own + 1] = phase, takes_part
        work(index)
