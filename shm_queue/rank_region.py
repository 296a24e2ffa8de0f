"""Memory that the ranks of one group share for what they do together, one region an epoch.

From its begin on, in lines of 64 bytes: four that all ranks write, one for each rank, one for each rank's presence;
from the next page on two slots of `slot_bytes` for each rank: those of even calls, then those of odd ones. What stands
there is the business of who exchanges; order is the kernel's and atomic instructions', as theirs says.

Who is alive is the kernel's word, too. A rank holds a lock on one byte of the memory for as long as its process lives
(an open file description lock, through a description of its own); whoever finds a rank present and its lock free knows
that it has died.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, ProtocolViolation
from .segment import CACHE_LINE_BYTES, WORD_BYTES, create_memory, map_memory

_WORDS_OF_LINE = CACHE_LINE_BYTES // WORD_BYTES
_SHARED_LINES = 4
_PAGE_BYTES = 4096
_FLOCK = struct.Struct("@hhqqi4x")
"""The kernel's: type, whence, start, length, pid."""


class RankRegionLayout(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of `num_ranks` ranks; a slot has `slot_bytes` bytes, a multiple of a page."""

    name: str
    num_ranks: int
    slot_bytes: int

    @property
    def head_bytes(self) -> int:
        """Before the slots."""
        return -(-(_SHARED_LINES + 2 * self.num_ranks) * CACHE_LINE_BYTES // _PAGE_BYTES) * _PAGE_BYTES

    @property
    def num_bytes(self) -> int:
        return self.head_bytes + 2 * self.num_ranks * self.slot_bytes


def create_rank_region(layout: RankRegionLayout) -> int:
    """A memfd, the caller's. Raises ConfigError for an impossible layout, NotEnoughMemory."""
    if layout.num_ranks < 1:
        raise ConfigError(f"{layout.name}: num_ranks is {layout.num_ranks}, it must be at least 1")
    if layout.slot_bytes < 1 or layout.slot_bytes % _PAGE_BYTES:
        raise ConfigError(
            f"{layout.name}: slot_bytes is {layout.slot_bytes:,}, it must be a multiple of {_PAGE_BYTES:,}"
        )
    return create_memory(layout.name, layout.num_bytes)


class RankRegion:
    """One rank's hold on a region: a rank has one process, and a process that is forked from it would keep it alive."""

    def __init__(self, layout: RankRegionLayout, fd: int, rank: int) -> None:
        """`fd` stays the caller's. Raises ProtocolViolation if the memory is not of the layout's size or another
        process has the rank."""
        self.layout, self.rank = layout, rank
        self._memory = map_memory(layout.name, fd, layout.num_bytes, is_writable=True)
        lines = np.frombuffer(self._memory, np.int64, layout.head_bytes // WORD_BYTES).reshape(-1, _WORDS_OF_LINE)
        self.shared_words: npt.NDArray[np.int64] = lines[:_SHARED_LINES].reshape(-1)
        """int64 [32]"""
        self.rank_words: npt.NDArray[np.int64] = lines[_SHARED_LINES:][: layout.num_ranks]
        """int64 [num_ranks, 8]"""
        self._pids = lines[_SHARED_LINES + layout.num_ranks :][: layout.num_ranks, 0]
        self.slots: npt.NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8, offset=layout.head_bytes).reshape(
            2, layout.num_ranks, layout.slot_bytes
        )
        """uint8 [2, num_ranks, slot_bytes]"""
        # One's own description: the lock is its, and duplicates of the caller's must not keep it.
        self._lock_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.fcntl(self._lock_fd, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_WRLCK, rank))
        except OSError as error:
            self.close()
            raise ProtocolViolation(f"{layout.name}: another process is rank {rank}") from error
        # ORDER: presence - the lock is held before the word says so, and the kernel is asked behind the word's reader.
        self._pids[rank] = os.getpid()

    def dead_ranks(self) -> Iterator[tuple[int, int]]:
        """(rank, pid) of those that were there and whose process has ended."""
        for rank in range(self.layout.num_ranks):
            # ORDER: presence
            pid = int(self._pids[rank])
            if rank != self.rank and pid and self._is_free(rank):
                yield rank, pid

    def close(self) -> None:
        """This rank has left, as if it had died. Twice is once."""
        if self._lock_fd < 0:
            return
        os.close(self._lock_fd)
        self._lock_fd = -1
        empty = np.empty(0, np.int64)
        self.shared_words, self.rank_words, self._pids = empty, empty.reshape(0, _WORDS_OF_LINE), empty
        self.slots = np.empty((2, 0, 0), np.uint8)

    def _is_free(self, rank: int) -> bool:
        found = fcntl.fcntl(self._lock_fd, fcntl.F_OFD_GETLK, _lock_of(fcntl.F_WRLCK, rank))
        return bool(_FLOCK.unpack(found)[0] == fcntl.F_UNLCK)


def _lock_of(kind: int, rank: int) -> bytes:
    """Of the byte that is the rank's."""
    return _FLOCK.pack(kind, os.SEEK_SET, rank, 1, 0)
