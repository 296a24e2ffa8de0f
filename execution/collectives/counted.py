"""How often the ranks of a group exchange something, and how much: kept by one of them about its own calls."""

from __future__ import annotations

import msgspec
from torch import Tensor

from ...models.collective import Collective


class CollectiveCounts(msgspec.Struct, frozen=True):
    """Calls, and bytes of the tensors that this rank handed in."""

    all_reduces: int = 0
    all_reduce_bytes: int = 0
    all_gathers: int = 0
    all_gather_bytes: int = 0
    gathers: int = 0
    gather_bytes: int = 0
    broadcasts: int = 0
    broadcast_bytes: int = 0

    def __add__(self, other: CollectiveCounts) -> CollectiveCounts:
        return CollectiveCounts(
            *(getattr(self, name) + getattr(other, name) for name in CollectiveCounts.__struct_fields__)
        )

    def __sub__(self, other: CollectiveCounts) -> CollectiveCounts:
        return CollectiveCounts(
            *(getattr(self, name) - getattr(other, name) for name in CollectiveCounts.__struct_fields__)
        )


class CountedCollective:
    """`Collective` over another one."""

    def __init__(self, inner: Collective) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self._calls = dict.fromkeys(("all_reduce", "all_gather", "gather", "broadcast"), 0)
        self._bytes = dict(self._calls)
        self._before = CollectiveCounts()

    def all_reduce(self, x: Tensor) -> Tensor:
        self._count("all_reduce", x)
        return self._inner.all_reduce(x)

    def all_gather(self, x: Tensor) -> Tensor:
        self._count("all_gather", x)
        return self._inner.all_gather(x)

    def gather(self, x: Tensor) -> Tensor | None:
        self._count("gather", x)
        return self._inner.gather(x)

    def broadcast(self, x: Tensor) -> Tensor:
        self._count("broadcast", x)
        return self._inner.broadcast(x)

    def statistics(self) -> CollectiveCounts:
        """Of all calls so far."""
        return CollectiveCounts(*(count[kind] for kind in self._calls for count in (self._calls, self._bytes)))

    def take_step(self) -> CollectiveCounts:
        """Of the calls since this was asked last."""
        total = self.statistics()
        self._before, before = total, self._before
        return total - before

    def add(self, counts: CollectiveCounts) -> None:
        """Of calls that were made without this object, as by a recorded graph; negative ones take back."""
        for kind in self._calls:
            self._calls[kind] += getattr(counts, f"{kind}s")
            self._bytes[kind] += getattr(counts, f"{kind}_bytes")

    def _count(self, kind: str, x: Tensor) -> None:
        self._calls[kind] += 1
        self._bytes[kind] += x.nbytes
