"""Bytes a second that threads read from memory, on arrays that no cache holds."""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

_NUM_BYTES = 128 << 20
"""Of a thread's array."""
_NUM_ROUNDS = 7


def read_bandwidth(num_threads: int, num_bytes: int = _NUM_BYTES, num_rounds: int = _NUM_ROUNDS) -> float:
    """The best round's: what disturbs one makes it slower only.

    Each thread looks for the largest byte of an array of its own, `num_bytes` long; numpy does that by whole vectors
    and without the interpreter's lock.
    """
    arrays = [np.ones(num_bytes, np.uint8) for _ in range(num_threads)]
    return num_threads * num_bytes / min(_round_s(arrays) for _ in range(num_rounds))


def _round_s(arrays: list[NDArray[np.uint8]]) -> float:
    """From the moment at which all are ready to the moment at which the last is through."""
    start = threading.Barrier(len(arrays) + 1)

    def read(array: NDArray[np.uint8]) -> None:
        start.wait()
        array.max()

    threads = [threading.Thread(target=read, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    begun = time.perf_counter()
    start.wait()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun
