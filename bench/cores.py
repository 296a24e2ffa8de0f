"""Cores of their own for a worker's compute threads, away from what else a benchmark runs on its machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .server_process import ServerProcess

NUM_REST = 2
"""Cores for the load generator and the control process together."""


class Cores(NamedTuple):
    """Numbers as the operating system has them."""

    worker: tuple[int, ...]
    rest: tuple[int, ...]


def share_out(siblings: Sequence[Sequence[int]]) -> Cores | None:
    """The last physical cores are the rest's, until it has NUM_REST; None if no core would be left for the worker.

    `siblings`: of each physical core the numbers of its hardware threads; one that is shared is nobody's own.
    """
    rest: list[int] = []
    own = list(siblings)
    while own and len(rest) < NUM_REST:
        rest += own.pop()
    if not own:
        return None
    return Cores(tuple(sorted(core for cores in own for core in cores)), tuple(sorted(rest)))


def cores_here() -> Cores | None:
    """Of those that this process may use."""
    own = os.sched_getaffinity(0)
    groups = {_siblings(core) & own or frozenset({core}) for core in own}
    return share_out(sorted(map(sorted, groups)))


@contextmanager
def pinned(server: ServerProcess, cores: Cores | None) -> Iterator[None]:
    """The worker's threads stay on its cores, the server's other processes and this one on the rest; None: anywhere."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        worker = server.pid_of("worker")
        for pid in {server.pid, os.getpid(), *server.children()} - {worker}:
            _pin(pid, cores.rest)
        _pin(worker, cores.worker)
    try:
        yield
    finally:
        _pin(os.getpid(), before)


def _pin(pid: int, cores: Sequence[int] | set[int]) -> None:
    """Each thread that is there now; later ones have the cores of the thread that starts them."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def _siblings(core: int) -> frozenset[int]:
    """Hardware threads of the same physical core."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        parts = path.read_text().strip().split(",")
    except OSError:
        return frozenset({core})
    found: set[int] = set()
    for part in parts:
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
