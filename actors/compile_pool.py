"""Processes that check constraints (`structured_output/sandbox.py`), as their owner holds them.

A check that exceeds its limits ends its process alone, and is refused; the others go on. A cheap check waits behind no
expensive one: what takes longer than a moment gets what time is left over and gives its place in the queue away. Where
as many slow ones run already it begins again when one of them has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

import msgspec

from ..errors import EngineFailure, GrammarRefused
from ..mailbox.messages.grammar import Constraint
from ..structured_output.sandbox_messages import HEAD, Check, Checked, FromSandbox, Ready, Setup, frame

START_S = 300.0
"""A process that is not ready by then is given up."""
MOMENT_S = 0.25
"""A check that takes longer is a slow one."""
PATIENCE_S = 1.0
"""And so long it may go on where as many slow ones run already, before it gives its place away to begin again."""
EXIT_S = 30.0
"""A process that lingers so long after its output's end is ended."""
_NICENESS = 15
"""Of a process from its first moment on: whoever waits for a token goes first."""
SILENCE_S = 120.0
"""A process that does not run at all (stopped, or the machine starves) is ended after so long."""


def sandbox_command() -> list[str]:
    """Starts a process that ends with this one."""
    python = [sys.executable, "-P", "-m"]
    return [*python, "callboard.actors.parent_death", str(os.getpid()), *python, "callboard.structured_output.sandbox"]


class PoolStatistics(msgspec.Struct, frozen=True):
    num_processes: int
    """That run now, those that get ready included."""
    num_checks: int
    num_killed: int
    """Processes ended by a check that exceeded its limits."""


class CompilePool:
    """At most `num_processes` checks at once, and as many slow ones beside them."""

    def __init__(self, setup: Setup, num_processes: int, command: Sequence[str] | None = None) -> None:
        self._setup = setup
        self._setup_frame = frame(setup)
        self._command = list(command or sandbox_command())
        self._num_processes = num_processes
        self._places = asyncio.Semaphore(num_processes)
        self._slow_places = asyncio.Semaphore(num_processes)
        self._idle: asyncio.Queue[_Sandbox | EngineFailure] = asyncio.Queue()
        self._sandboxes: set[_Sandbox] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._num_waiting = 0
        self._num_checks = 0
        self._num_killed = 0
        self._is_closed = False

    def start(self) -> None:
        """Start the processes ahead, without waiting for them."""
        while len(self._sandboxes) + len(self._starting) < self._num_processes:
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
                asked.cancel()
                await self._replace(sandbox)
                raise
            if done:
                await self._finish(sandbox, asked)
                return
            begins_again = self._slow_places.locked()
            if begins_again:  # rather than to keep the place: behind it wait cheap ones
                asked.cancel()
                await self._replace(sandbox)
            else:
                await self._slow_places.acquire()  # at once: one is free
        if begins_again:
            await self._slow_places.acquire()
        try:
            if begins_again:
                sandbox, asked = await self._begin(constraint)
            sandbox.lower_priority()
            await self._finish(sandbox, asked)
        finally:
            self._slow_places.release()

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(len(self._sandboxes) + len(self._starting), self._num_checks, self._num_killed)

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

    async def _begin(self, constraint: Constraint) -> tuple[_Sandbox, asyncio.Future[str | None]]:
        sandbox = await self._take()
        return sandbox, asyncio.ensure_future(sandbox.check(constraint))

    async def _take(self) -> _Sandbox:
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

    async def _finish(self, sandbox: _Sandbox, asked: asyncio.Future[str | None]) -> None:
        """Take the answer, and the process back if it is as good as before."""
        is_good = False
        try:
            refusal = await asyncio.wait_for(asked, SILENCE_S)
            is_good = not sandbox.has_low_priority and self._idle.qsize() < self._num_processes
        except TimeoutError:
            self._num_killed += 1
            refusal = f"compiling it gave no answer within {SILENCE_S:g} s"
        except (EOFError, OSError):
            status = await sandbox.last_status()
            if status == -signal.SIGKILL:  # none of the limits: that says nothing about the constraint
                raise _KilledFromOutside from None
            self._num_killed += 1
            refusal = self._cause(status)
        finally:
            if is_good:
                self._idle.put_nowait(sandbox)
            else:
                await self._replace(sandbox)
        if refusal is not None:
            raise GrammarRefused(refusal)

    def _cause(self, status: int) -> str:
        if status == -signal.SIGPROF:
            return f"compiling it takes more than {self._setup.processor_s:g} s of processor time"
        memory = f"compiling it takes more than {self._setup.memory_bytes:,} bytes of memory"
        return f"{memory}, or ends the compiler (exit status {status})"

    def _start_another(self) -> None:
        task = asyncio.ensure_future(self._add())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _add(self) -> None:
        sandbox = None
        try:
            sandbox = await _Sandbox.start(self._command)
            self._sandboxes.add(sandbox)
            await asyncio.wait_for(sandbox.make_ready(self._setup_frame), START_S)
            self._idle.put_nowait(sandbox)
        except (TimeoutError, EOFError, OSError) as error:
            if sandbox is not None:
                await self._end(sandbox)
            if self._num_waiting:
                failure = EngineFailure("no process starts that could compile the grammar")
                failure.__cause__ = error
                self._idle.put_nowait(failure)

    async def _replace(self, sandbox: _Sandbox) -> None:
        await asyncio.shield(self._end(sandbox))
        if not self._is_closed:
            self.start()

    async def _end(self, sandbox: _Sandbox) -> None:
        self._sandboxes.discard(sandbox)
        await sandbox.end()


class _KilledFromOutside(Exception):
    """Somebody sent a process SIGKILL."""


class _Sandbox:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._pidfd: int | None = os.pidfd_open(process.pid)
        self._decoder = msgspec.msgpack.Decoder(FromSandbox)
        self.has_low_priority = False

    @staticmethod
    async def start(command: Sequence[str]) -> _Sandbox:
        """Raises OSError."""
        pipe = asyncio.subprocess.PIPE
        sandbox = _Sandbox(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, sandbox._process.pid, _NICENESS)
        return sandbox

    async def make_ready(self, setup_frame: bytes) -> None:
        """Raises EOFError or OSError if the process ends."""
        assert isinstance(await self._ask(setup_frame), Ready)

    async def check(self, constraint: Constraint) -> str | None:
        """The refusal, if it is one. Raises EOFError or OSError if the process ends."""
        answer = await self._ask(frame(Check(constraint)))
        assert isinstance(answer, Checked)
        return answer.refusal

    async def _ask(self, message: bytes) -> FromSandbox:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(message)
        await stdin.drain()
        (size,) = HEAD.unpack(await stdout.readexactly(HEAD.size))
        return self._decoder.decode(await stdout.readexactly(size))

    def lower_priority(self) -> None:
        """It runs when nobody else wants the core, and leaves it at once. For good: a check like it may come again."""
        self.has_low_priority = True
        with contextlib.suppress(OSError):
            os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))

    async def last_status(self) -> int:
        """Its output has ended, so it is about to exit: its own status, not that of being killed meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), EXIT_S)
        return await self.end()

    async def end(self) -> int:
        """Kill what still runs; its exit status. Twice is once."""
        self.kill()
        if self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            os.close(pidfd)
        return await self._process.wait()

    def kill(self) -> None:
        """Nobody waits for it. Not by the process object, which would wait for the process itself and take the status
        away from the loop."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
