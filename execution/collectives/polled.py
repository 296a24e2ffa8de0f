"""Ranks on one host that share memory and look into it now and then: for what they exchange at their start.

It needs no compiled code and no order of stores. A record says itself which round it is of and proves that it is whole,
as the masks of constrained rows do. Slots alternate from round to round: a rank writes to its slot again when it has
the others' records of the round between, which they wrote when they had read.
"""

from __future__ import annotations

import struct
import time
from functools import reduce
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from ...errors import PeerDied
from ...shm_queue.rank_region import RankRegion, RankRegionLayout

_HEADER = struct.Struct("=QQQ")
"""Round, bytes, sum over both and what follows."""
_LOOK_S = 0.0002
_LOOKS_PER_DEATH = 250
"""A rank that waits asks so seldom whether another has died."""


class PolledCollective:
    """`models.collective.Collective` of CPU tensors over a `RankRegion`, which nothing else uses. One thread at a time.

    Calls raise PeerDied when another rank's process has ended while this one waits for it.
    """

    def __init__(self, layout: RankRegionLayout, fd: int, rank: int) -> None:
        """`fd` stays the caller's. Raises ProtocolViolation, as `RankRegion`."""
        self._region = RankRegion(layout, fd, rank)
        self.rank, self.size = rank, layout.num_ranks
        self._round = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        x.copy_(reduce(torch.add, self._exchange(x)))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange(x))

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._exchange(x)
        return torch.stack(parts) if self.rank == 0 else None

    def broadcast(self, x: Tensor) -> Tensor:
        x.copy_(self._exchange(x)[0])
        return x

    def close(self) -> None:
        """Leave the group. Twice is once."""
        self._region.close()

    def _exchange(self, x: Tensor) -> list[Tensor]:
        """Everybody's x."""
        content = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""
        most = self._region.layout.slot_bytes - _HEADER.size
        parts = [bytearray() for _ in range(self.size)]
        for first in range(0, len(content), most):
            for part, record in zip(parts, self._meet(content[first : first + most]), strict=True):
                part += record
        return [torch.frombuffer(part, dtype=x.dtype).view(x.shape) if part else x.clone() for part in parts]

    def _meet(self, content: bytes) -> list[bytes]:
        self._round += 1
        slots = self._region.slots[self._round & 1]
        checked = crc32(_HEADER.pack(self._round, len(content), 0) + content)
        record = _HEADER.pack(self._round, len(content), checked) + content
        slots[self.rank, : len(record)] = np.frombuffer(record, np.uint8)
        return [self._wait_for(slots[rank], rank) for rank in range(self.size)]

    def _wait_for(self, slot: np.ndarray[tuple[int], np.dtype[np.uint8]], rank: int) -> bytes:
        """The record of this round."""
        looks = 0
        while (content := self._look(slot)) is None:
            looks += 1
            if looks % _LOOKS_PER_DEATH == 0:
                for dead, pid in self._region.dead_ranks():
                    if self._look(slot) is None:
                        raise PeerDied(dead, pid, None)
            time.sleep(_LOOK_S)
        return content

    def _look(self, slot: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> bytes | None:
        """What stands there if it is of this round, and whole."""
        number, size, checked = _HEADER.unpack(slot[: _HEADER.size].tobytes())
        if number != self._round or size > slot.size - _HEADER.size:
            return None
        content = slot[_HEADER.size :][:size].tobytes()
        return content if crc32(_HEADER.pack(number, size, 0) + content) == checked else None
