"""What ranks share that exchange through memory (`rank_exchange`), as compiled code takes it."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ARRIVALS, MEETINGS, SLEEPING = 0, 8, 16
"""Places of the shared words, each on a line of its own: arrivals at all meetings so far; meetings that are over; ranks
that sleep until one is."""
PASSED, CALLS, SIGNATURES, PATIENCE, MOST_PATIENCE = 0, 1, 2, 4, 5
"""Words of a rank: meetings that it has passed; calls that it has made; what its calls of even and of odd number are;
how long it spins at a meeting before it sleeps, and the most that this may become (0 where ranks share cores)."""
WHAT, SOURCE, TARGET, SIZE, STRIDE, NUM_GIVERS, NUM_TAKEN, STAGE, TIMEOUT_NS = range(9)
"""Words of a call. What it is, the same on all ranks; addresses; bytes, of a sum: elements; bytes from one rank's at
the target to the next one's, of a sum: of an element; how many of the first ranks give something, of a sum: whether it
takes two meetings; of how many this one takes it; where it stands, 0 at first; how long a sleep may be."""
CALL = Struct("=9q")
DONE, DISAGREEMENT, WAITING = 0, 1, 2
"""What a call returns: it is done; calls of two ranks differ; a timeout or a signal has ended the sleep, and the same
call goes on where it stands."""
SUM_FLOAT32, SUM_BFLOAT16 = 4, 2
"""Kinds of sums, by the bytes of an element."""
SCRATCH = 2048
"""Elements."""


class Ranks(NamedTuple):
    """One rank's view."""

    shared: NDArray[np.int64]
    """[24]"""
    words: NDArray[np.int64]
    """[num_ranks, 8]"""
    call: NDArray[np.int64]
    """[9], the rank's own"""
    scratch: NDArray[np.float32]
    """[SCRATCH], the rank's own"""
    rank: int
    slots: int
    """Address of uint8 [2, num_ranks, slot_bytes]."""
    slot_bytes: int
