"""Ranks on one host that share memory: CPU tensors."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

from ...errors import PeerDied, ProtocolViolation
from ...kernels.cpu.entries import CompiledFunction, exchange, sum_up
from ...kernels.cpu.packed_arguments import Packed
from ...kernels.cpu.rank_words import (
    CALL,
    DISAGREEMENT,
    DONE,
    MOST_PATIENCE,
    PATIENCE,
    SCRATCH,
    SUM_BFLOAT16,
    SUM_FLOAT32,
    Ranks,
)
from ...kernels.cpu.team import LONGEST_SPIN
from ...shm_queue.rank_region import RankRegion, RankRegionLayout

_SUMS = {torch.float32: SUM_FLOAT32, torch.bfloat16: SUM_BFLOAT16}
_DTYPES = {
    dtype: number
    for number, dtype in enumerate(
        (
            torch.float32,
            torch.bfloat16,
            torch.float16,
            torch.float64,
            torch.int64,
            torch.int32,
            torch.uint8,
            torch.bool,
        )
    )
}
_REDUCE, _GATHER_ALL, _GATHER, _BROADCAST = range(1, 5)
_LOOK_NS = 100_000_000
"""A rank that waits sleeps so long before it looks whether another has died."""
_ONE_MEETING_BYTES = 32 << 10
"""Up to so many bytes for each further rank a sum takes one meeting."""


class SharedMemoryCollective:
    """`models.collective.Collective` over a `RankRegion`. One thread at a time.

    Calls raise PeerDied when another rank's process has ended while this one waits for it, and ProtocolViolation when
    ranks make different calls; behind either the region is of no use.
    """

    def __init__(self, layout: RankRegionLayout, fd: int, rank: int) -> None:
        """`fd` stays the caller's. Raises ProtocolViolation, as `RankRegion`."""
        self._region = region = RankRegion(layout, fd, rank)
        self.rank, self.size = rank, layout.num_ranks
        words = region.rank_words[rank]
        if len(os.sched_getaffinity(0)) >= layout.num_ranks:
            words[PATIENCE] = words[MOST_PATIENCE] = LONGEST_SPIN
        self._call = bytearray(CALL.size)
        ranks = Ranks(
            region.shared_words,
            region.rank_words,
            np.frombuffer(self._call, np.int64),
            np.zeros(SCRATCH, np.float32),
            rank,
            region.slots.ctypes.data,
            layout.slot_bytes,
        )
        self._ranks = Packed(ranks)

    def all_reduce(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        kind = _SUMS.get(dtype)
        if kind is None:
            return self._sum_gathered(x)
        x = x.contiguous()
        num_elements, address = x.numel(), x.data_ptr()
        what = _signature(_REDUCE, num_elements * kind, dtype)
        most = self._region.layout.slot_bytes // kind
        for first in range(0, num_elements, most):
            count = min(most, num_elements - first)
            has_shares = count * kind > _ONE_MEETING_BYTES * max(self.size - 1, 1)
            CALL.pack_into(self._call, 0, what, 0, address + first * kind, count, kind, has_shares, 0, 0, _LOOK_NS)
            self._finish(sum_up)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        out = torch.empty((self.size, *x.shape), dtype=x.dtype)
        self._exchange(_GATHER_ALL, x.contiguous(), out, self.size, self.size)
        return out

    def gather(self, x: Tensor) -> Tensor | None:
        num_taken = self.size if self.rank == 0 else 0
        out = torch.empty((num_taken, *x.shape), dtype=x.dtype)
        self._exchange(_GATHER, x.contiguous(), out, self.size, num_taken)
        return out if self.rank == 0 else None

    def broadcast(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        self._exchange(_BROADCAST, x, x, 1, 0 if self.rank == 0 else 1)
        return x

    def close(self) -> None:
        """Leave the group. Twice is once."""
        self._region.close()

    def _exchange(self, kind: int, x: Tensor, out: Tensor, num_givers: int, num_taken: int) -> None:
        """x of the first `num_givers` ranks -> out, [num_taken, *x.shape]."""
        num_bytes, most = x.nbytes, self._region.layout.slot_bytes
        source, target, what = x.data_ptr(), out.data_ptr(), _signature(kind, num_bytes, x.dtype)
        for first in range(0, num_bytes, most):
            size = min(most, num_bytes - first)
            places = source + first, target + first, size, num_bytes
            CALL.pack_into(self._call, 0, what, *places, num_givers, num_taken, 0, _LOOK_NS)
            self._finish(exchange)

    def _finish(self, call: CompiledFunction) -> None:
        """Until it is done: a rank that waits for long looks whether another has died."""
        while (state := call(self._ranks)) != DONE:
            if state == DISAGREEMENT:
                raise ProtocolViolation(f"rank {self.rank} of {self.size} and another make different calls")
            for rank, pid in self._region.dead_ranks():
                raise PeerDied(rank, pid, None)

    def _sum_gathered(self, x: Tensor) -> Tensor:
        """Of other dtypes, in the order of the ranks."""
        parts = self.all_gather(x)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


def _signature(kind: int, num_bytes: int, dtype: torch.dtype) -> int:
    return num_bytes << 8 | _DTYPES[dtype] << 4 | kind
