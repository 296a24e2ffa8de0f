"""What fails beside an actor's loop, in a background task or a reader's callback, must end the process all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from .task_register import start_task

T = TypeVar("T")


class Faults:
    """Keeps the first fault until `run` raises it. One for each actor, one for the supervisor, one for a child."""

    def __init__(self, owner: str = "process") -> None:
        """`owner`: the actor's name, for its tasks."""
        self._owner = owner
        self._is_over = False
        self._first: BaseException | None = None
        self._happened = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, error: BaseException) -> None:
        """Called where nobody above would see the error; later ones are dropped, for the first is the cause."""
        if self._first is None:
            self._first = error
            self._happened.set()

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work` in the background; what it raises is reported. It is to end when the actor does (`cancel`)."""
        event = getattr(work, "__qualname__", "work")
        task = start_task(work, owner=self._owner, event=event, is_owned=lambda: not self._is_over)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of `work`. Raises what it raises, or the first fault, and then `work` is cancelled."""
        main = asyncio.ensure_future(work)
        fault = asyncio.ensure_future(self._happened.wait())
        try:
            await asyncio.wait((main, fault), return_when=asyncio.FIRST_COMPLETED)
            if self._first is not None:
                raise self._first
            return main.result()
        finally:
            main.cancel()
            fault.cancel()

    def cancel(self) -> None:
        """End what runs in the background."""
        self._is_over = True
        for task in self._tasks:
            task.cancel()

    async def wait_cancelled(self) -> None:
        """End what runs in the background, and wait until it has ended."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report(error)
