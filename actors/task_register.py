"""Background tasks of a process, by owner and event: one that goes on although its owner has ended is a leak.

An *owner* is what a task works for: an actor, a client's stream. It ends, and then its tasks are to end, as a rule
because it cancels them. One that is still there `GRACE_S` later is named, cancelled and counted; it is no reason for a
process to die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec

from .log import log_event

T = TypeVar("T")

GRACE_S = 5.0
"""A task that was cancelled may have something to put in order."""
MAX_LOGGED = 20
"""Leaks of one check that get a line of the log each."""


class TaskLeak(msgspec.Struct, frozen=True, gc=False):
    """A task whose owner has ended."""

    owner: str
    event: str
    """What it was started for."""
    age_s: float
    """Since its start."""


class TaskStatistics(msgspec.Struct, frozen=True, gc=False):
    """Of one process."""

    num_tasks: int
    """That have not ended."""
    num_leaks: int
    """Since the start."""


class _Entry:
    __slots__ = ("event", "is_owned", "is_told", "orphan_since_s", "owner", "started_s")

    def __init__(self, owner: str, event: str, is_owned: Callable[[], bool], started_s: float) -> None:
        self.owner, self.event, self.is_owned, self.started_s = owner, event, is_owned, started_s
        self.orphan_since_s: float | None = None
        """When a check first saw it without its owner."""
        self.is_told = False


class TaskRegister:
    """One for each event loop. It knows a task until that has ended."""

    def __init__(self) -> None:
        self._entries: dict[asyncio.Task[object], _Entry] = {}
        self._num_leaks = 0

    def start(
        self, work: Coroutine[object, object, T], *, owner: str, event: str, is_owned: Callable[[], bool]
    ) -> asyncio.Task[T]:
        """Run `work` in the background. `is_owned`: the owner has not ended; asked at each check."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, name=f"{event} of {owner}")
        self._entries[task] = _Entry(owner, event, is_owned, loop.time())
        task.add_done_callback(self._forget)
        return task

    def check(self, now_s: float) -> list[TaskLeak]:
        """The tasks that have had no owner for GRACE_S, each once; they are cancelled. `now_s`: the loop's time."""
        leaks = []
        for task, entry in self._entries.items():
            if entry.is_told or entry.is_owned():
                continue
            if entry.orphan_since_s is None:
                entry.orphan_since_s = now_s
            if now_s - entry.orphan_since_s >= GRACE_S:
                entry.is_told = True
                task.cancel()
                leaks.append(TaskLeak(entry.owner, entry.event, now_s - entry.started_s))
        self._num_leaks += len(leaks)
        return leaks

    def statistics(self) -> TaskStatistics:
        """Gauges and counters now."""
        return TaskStatistics(len(self._entries), self._num_leaks)

    def _forget(self, task: asyncio.Task[object]) -> None:
        del self._entries[task]


_registers: WeakKeyDictionary[asyncio.AbstractEventLoop, TaskRegister] = WeakKeyDictionary()


def running_tasks() -> TaskRegister:
    """The register of the running event loop."""
    return _registers.setdefault(asyncio.get_running_loop(), TaskRegister())


def start_task(
    work: Coroutine[object, object, T], *, owner: str, event: str, is_owned: Callable[[], bool]
) -> asyncio.Task[T]:
    """As `TaskRegister.start`, in the register of the running event loop."""
    return running_tasks().start(work, owner=owner, event=event, is_owned=is_owned)


def tell_leaked_tasks() -> None:
    """A check of the running event loop's register: a line of the log for each leak."""
    leaks = running_tasks().check(asyncio.get_running_loop().time())
    for leak in leaks[:MAX_LOGGED]:
        log_event("process.task_leaked", owner=leak.owner, task=leak.event, age_s=leak.age_s)
    if len(leaks) > MAX_LOGGED:
        log_event("process.tasks_leaked", num_tasks=len(leaks), shown=MAX_LOGGED)
