"""Processes that have constraints checked (`sandbox.py`), as their owner holds them.

A check that exceeds its limits ends a fork of its process, and is refused; the next one is made by another fork. A
cheap check waits behind no expensive one: what takes longer than a moment gets what time is left over and gives its
place in the queue away. Where as many slow ones run already it begins again when one of them has ended.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import msgspec

from ..errors import EngineFailure, GrammarRefused
from ..mailbox.messages.grammar import Constraint
from ..structured_output.sandbox_messages import Checked, Ended, Setup, frame
from .sandbox_process import SandboxProcess, sandbox_command

START_S = 300.0
"""A process that is not ready by then is given up."""
MOMENT_S = 0.25
"""A check that takes longer is a slow one."""
PATIENCE_S = 1.0
"""And so long it may go on where as many slow ones run already, before it gives its place away to begin again."""
EXIT_S = 30.0
"""A process that does not say within that time that its fork was killed is ended too."""
SILENCE_S = 120.0
"""A check that gets no processor time at all for so long is ended: it was stopped, or the machine starves."""


class PoolStatistics(msgspec.Struct, frozen=True):
    num_processes: int
    """That run now, those that get ready included."""
    num_checks: int
    num_killed: int
    """Checks that exceeded their limits."""


class CompilePool:
    """At most `num_processes` checks at once, and as many slow ones beside them."""

    def __init__(self, setup: Setup, num_processes: int, command: Sequence[str] | None = None) -> None:
        self._setup = setup
        self._setup_frame = frame(setup)
        self._command = list(command or sandbox_command())
        self._num_processes = num_processes
        self._places = asyncio.Semaphore(num_processes)
        self._slow_places = asyncio.Semaphore(num_processes)
        self._idle: asyncio.Queue[SandboxProcess | EngineFailure] = asyncio.Queue()
        self._sandboxes: set[SandboxProcess] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._num_waiting = 0
        self._num_checks = 0
        self._num_killed = 0
        self._is_closed = False

    def start(self) -> None:
        """Start the processes ahead, without waiting for them."""
        while len(self._sandboxes) < self._num_processes:
            self._start_another()

    async def check(self, constraint: Constraint) -> None:
        """Raises GrammarRefused for what cannot be compiled within the limits, EngineFailure if no process starts."""
        self._num_checks += 1
        try:
            await self._check(constraint)
        except _KilledFromOutside:
            await self._check_again(constraint)

    async def _check_again(self, constraint: Constraint) -> None:
        """The first process was no help; that may have been chance, but not twice."""
        try:
            await self._check(constraint)
        except _KilledFromOutside as killed:
            message = "the processes that compile are killed from outside (by the kernel, if the machine has no memory)"
            raise EngineFailure(message) from killed

    async def _check(self, constraint: Constraint) -> None:
        async with self._places:
            sandbox, asked = await self._begin(constraint)
            try:
                for patience_s in (MOMENT_S, PATIENCE_S):
                    done, _ = await asyncio.wait((asked,), timeout=patience_s)
                    if done or not self._slow_places.locked():
                        break
            except BaseException:
                await asyncio.shield(self._give_up(sandbox, asked))
                raise
            if done:
                await self._finish(sandbox, asked)
                return
            begins_again = self._slow_places.locked()
            if begins_again:  # rather than to keep the place: behind it wait cheap ones
                await asyncio.shield(self._give_up(sandbox, asked))
            else:
                await self._slow_places.acquire()  # at once: one is free
        if begins_again:
            await self._slow_places.acquire()
        try:
            if begins_again:
                sandbox, asked = await self._begin(constraint)
            sandbox.lower_priority()
            yielding = asyncio.ensure_future(sandbox.yield_to_others())
            try:
                await self._finish(sandbox, asked)
            finally:
                yielding.cancel()
        finally:
            self._slow_places.release()

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(len(self._sandboxes), self._num_checks, self._num_killed)

    async def close(self) -> None:
        """End all processes. No check may be under way."""
        self._is_closed = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for sandbox in list(self._sandboxes):
            await self._end(sandbox)

    def kill(self) -> None:
        """As `close`, but nobody waits for them: this process ends."""
        self._is_closed = True
        for task in self._starting:
            task.cancel()
        for sandbox in self._sandboxes:
            sandbox.kill()

    async def _begin(self, constraint: Constraint) -> tuple[SandboxProcess, asyncio.Future[Checked | Ended]]:
        sandbox = await self._take()
        return sandbox, asyncio.ensure_future(sandbox.check(constraint))

    async def _give_up(self, sandbox: SandboxProcess, asked: asyncio.Future[Checked | Ended]) -> None:
        """End the check alone."""
        if not asked.done():
            sandbox.kill_check()
        await asyncio.wait((asked,), timeout=EXIT_S)
        if asked.done() and asked.exception() is None:
            await self._put_back(sandbox)
        else:
            asked.cancel()
            await self._replace(sandbox)

    async def _take(self) -> SandboxProcess:
        """A process that is ready and does nothing."""
        if self._idle.empty() and len(self._starting) <= self._num_waiting:
            self._start_another()
        self._num_waiting += 1
        try:
            found = await self._idle.get()
        finally:
            self._num_waiting -= 1
        if isinstance(found, EngineFailure):
            raise found
        return found

    async def _finish(self, sandbox: SandboxProcess, asked: asyncio.Future[Checked | Ended]) -> None:
        """Take the answer, and the process back."""
        try:
            used_s = -1.0
            while not asked.done() and (now_s := sandbox.check_processor_s()) > used_s:
                used_s = now_s
                await asyncio.wait((asked,), timeout=SILENCE_S)
        except BaseException:
            await asyncio.shield(self._give_up(sandbox, asked))
            raise
        if not asked.done():
            asked.cancel()
            await self._replace(sandbox)
            self._num_killed += 1
            raise GrammarRefused(f"compiling it got no processor time for {SILENCE_S:g} s")
        try:
            answer = asked.result()
        except (EOFError, OSError):  # of the process itself: that says nothing about the constraint
            await self._replace(sandbox)
            raise _KilledFromOutside from None
        await self._put_back(sandbox)
        if isinstance(answer, Ended):
            if answer.status == -signal.SIGKILL:  # none of the limits
                raise _KilledFromOutside
            self._num_killed += 1
            raise GrammarRefused(self._cause(answer.status))
        if answer.refusal is not None:
            raise GrammarRefused(answer.refusal)

    def _cause(self, status: int) -> str:
        if status == -signal.SIGPROF:
            return f"compiling it takes more than {self._setup.processor_s:g} s of processor time"
        memory = f"compiling it takes more than {self._setup.memory_bytes:,} bytes of memory"
        return f"{memory}, or ends the compiler (exit status {status})"

    def _start_another(self) -> None:
        sandbox = SandboxProcess(self._command)
        self._sandboxes.add(sandbox)
        self._make_ready(sandbox)

    async def _put_back(self, sandbox: SandboxProcess) -> None:
        """It has answered, and is kept unless there are enough of them."""
        if self._idle.qsize() + len(self._starting) < self._num_processes:
            self._make_ready(sandbox)
        else:
            await self._replace(sandbox)

    def _make_ready(self, sandbox: SandboxProcess) -> None:
        """Without waiting for it."""
        task = asyncio.ensure_future(self._add(sandbox))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _add(self, sandbox: SandboxProcess) -> None:
        try:
            await asyncio.wait_for(sandbox.wait_ready(self._setup_frame), START_S)
            self._idle.put_nowait(sandbox)
        except (TimeoutError, EOFError, OSError) as error:
            await self._end(sandbox)
            if sandbox.has_been_ready:  # so others start, too
                self._start_another()
            elif self._num_waiting:
                failure = EngineFailure("no process starts that could compile the grammar")
                failure.__cause__ = error
                self._idle.put_nowait(failure)

    async def _replace(self, sandbox: SandboxProcess) -> None:
        await asyncio.shield(self._end(sandbox))
        if not self._is_closed:
            self.start()

    async def _end(self, sandbox: SandboxProcess) -> None:
        self._sandboxes.discard(sandbox)
        await sandbox.end()


class _KilledFromOutside(Exception):
    """Somebody sent a process SIGKILL."""
