"""What ranks do together, as a model and its runner call it; `execution.collectives` has the implementations."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Collective(Protocol):
    """One group of ranks that share each layer: every rank makes the same calls in the same order.

    Tensors are contiguous, of the same shape and dtype on every rank. Sums are taken in rank order, so that every rank
    has the same bits.
    """

    @property
    def rank(self) -> int:
        """0 .. size - 1; rank 0 samples."""
        ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in x itself where that is possible; x is not to be used afterwards."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[size, *x.shape]: what each rank has."""
        ...

    def gather(self, x: Tensor) -> Tensor | None:
        """[size, *x.shape] on rank 0, None on the others."""
        ...

    def broadcast(self, x: Tensor) -> Tensor:
        """What rank 0 has, in x."""
        ...
