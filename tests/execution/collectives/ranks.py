"""Ranks of one group: as threads of this process, or as forks of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from callboard.execution.collectives.polled import PolledCollective
from callboard.execution.collectives.shared_memory import SharedMemoryCollective
from callboard.shm_queue.rank_region import RankRegionLayout, create_rank_region

WATCHDOG_S = 60.0
HostCollective = PolledCollective | SharedMemoryCollective
T = TypeVar("T")


@contextmanager
def region(num_ranks: int, slot_bytes: int = 4096) -> Iterator[tuple[RankRegionLayout, int]]:
    """(layout, descriptor)"""
    layout = RankRegionLayout("ranks", num_ranks, slot_bytes)
    fd = create_rank_region(layout)
    try:
        yield layout, fd
    finally:
        os.close(fd)


def run_ranks(
    num_ranks: int,
    work: Callable[[HostCollective], T],
    slot_bytes: int = 4096,
    kind: type[HostCollective] = SharedMemoryCollective,
) -> list[T]:
    """What `work` returns in each rank, a thread each; raises what one of them raises."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(layout: RankRegionLayout, fd: int, rank: int) -> None:
        collective = kind(layout, fd, rank)
        try:
            results[rank] = work(collective)
        except BaseException as error:
            errors.append(error)
        finally:
            collective.close()

    with region(num_ranks, slot_bytes) as (layout, fd):
        threads = [threading.Thread(target=run, args=(layout, fd, rank)) for rank in range(num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WATCHDOG_S)
            assert not thread.is_alive()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(num_ranks)]


def run_forks(num_ranks: int, work: Callable[[HostCollective], None]) -> list[int]:
    """Statuses of processes that have run `work`, one a rank: 0, or 1 where it raised."""
    with region(num_ranks) as (layout, fd):
        pids = []
        for rank in range(num_ranks):
            pid = os.fork()
            if pid:
                pids.append(pid)
                continue
            status = 1
            try:
                collective = SharedMemoryCollective(layout, fd, rank)
                work(collective)
                status = 0
            finally:
                os._exit(status)
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
