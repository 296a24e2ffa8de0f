"""Ranks as threads of this process, which meet at a barrier: the protocol of `models.collective`, and a count of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


class Meeting:
    """Where the threads of a group leave their tensors."""

    def __init__(self, size: int) -> None:
        self.left: list[Tensor | None] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)


class ThreadCollective:
    """One thread's end."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size = rank, len(meeting.left)
        self.counts: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self._meeting = meeting

    def _exchange(self, kind: str, x: Tensor) -> list[Tensor]:
        self.counts[kind] += 1
        self.num_bytes[kind] += x.nbytes
        self._meeting.left[self.rank] = x.clone()
        self._meeting.barrier.wait()
        everything = [tensor for tensor in self._meeting.left if tensor is not None]
        self._meeting.barrier.wait()
        assert len({(tensor.shape, tensor.dtype) for tensor in everything}) == 1
        return everything

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange("all_reduce", x)).sum(0)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.stack(self._exchange("all_gather", x))

    def gather(self, x: Tensor) -> Tensor | None:
        everything = self._exchange("gather", x)
        return None if self.rank else torch.stack(everything)

    def broadcast(self, x: Tensor) -> Tensor:
        return x.copy_(self._exchange("broadcast", x)[0])


def run_ranks(size: int, run: Callable[[ThreadCollective], R]) -> list[R]:
    """`run` in a thread for each rank; what each returned. Raises what one of them raised."""
    meeting = Meeting(size)
    results: list[R | None] = [None] * size
    errors: list[BaseException] = []

    def of_rank(rank: int) -> None:
        try:
            with torch.inference_mode():
                results[rank] = run(ThreadCollective(meeting, rank))
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [result for result in results if result is not None]


def same(results: Sequence[R]) -> R:
    """What all ranks returned alike."""
    assert all(result == results[0] for result in results)
    return results[0]
