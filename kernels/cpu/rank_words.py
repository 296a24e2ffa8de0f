"""What ranks share that exchange through memory (`rank_exchange`), as compiled code takes it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ARRIVALS, MEETINGS, SLEEPING = 0, 8, 16
"""Places of the shared words, each on a line of its own: arrivals at all meetings so far; meetings that are over; ranks
that sleep until one is."""
PASSED, CALLS, SIGNATURES, PATIENCE, MOST_PATIENCE = 0, 1, 2, 4, 5
"""Words of a rank: meetings that it has passed; calls that it has made; what its calls of even and of odd number are;
how long it spins at a meeting before it sleeps, and the most that this may become (0 where ranks share cores)."""
DONE, DISAGREEMENT = 0, -1
"""What an exchange returns: it is done; calls of two ranks differ. Or else where it stands, to be called again with."""
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
    scratch: NDArray[np.float32]
    """[SCRATCH], the rank's own"""
    rank: int
    slots: int
    """Address of uint8 [2, num_ranks, slot_bytes]."""
    slot_bytes: int
