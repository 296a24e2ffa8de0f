"""A process of the compile pool as its owner sees it: `sandbox.py` is the other side.

It is asked one thing at a time. Its fork makes the check; the owner sees to it that a slow one runs while a core is
left over, and rests otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

import msgspec

from ..mailbox.messages.grammar import Constraint
from ..structured_output.sandbox_messages import HEAD, Check, Checked, Ended, FromSandbox, Ready, frame

SLICE_S = 0.02
"""So long a slow check runs before it is looked at whether it has a core to itself."""
REST_S = 1.0
"""So long it rests where it has not."""
_NICENESS = 15
"""Of a process from its first moment on: whoever waits for a token goes first."""
_CPUCLOCK_SCHED = 2
"""Which of the clocks of a process: the kernel's clock id is ~pid << 3 | this."""
_DECODER = msgspec.msgpack.Decoder(FromSandbox)


def sandbox_command() -> list[str]:
    """Starts a process that ends with this one."""
    python = [sys.executable, "-P", "-m"]
    return [*python, "callboard.actors.parent_death", str(os.getpid()), *python, "callboard.actors.sandbox"]


class SandboxProcess:
    """One process, and the fork of it that makes the next check."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._pidfd: int | None = None
        self._fork = 0
        """Its pid; 0: there has been none."""
        self.has_low_priority = False

    async def wait_ready(self, setup_frame: bytes) -> None:
        """Until it takes a check; start it if it has not been. Raises EOFError or OSError if the process ends."""
        if self._process is None:
            await self._start()
            await self._send(setup_frame)
        while not isinstance(message := await self._receive(), Ready):
            pass  # the fork ended behind its answer
        self._fork = message.pid
        self.has_low_priority = False

    async def _start(self) -> None:
        """Raises OSError."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        self._pidfd = os.pidfd_open(self._process.pid)
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    async def check(self, constraint: Constraint) -> Checked | Ended:
        """It is ready. Raises EOFError or OSError if the process ends."""
        await self._send(frame(Check(constraint)))
        answer = await self._receive()
        assert not isinstance(answer, Ready), "an answer comes first"
        return answer

    async def _send(self, message: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(message)
        await self._process.stdin.drain()

    async def _receive(self) -> FromSandbox:
        assert self._process is not None and self._process.stdout is not None
        (size,) = HEAD.unpack(await self._process.stdout.readexactly(HEAD.size))
        return _DECODER.decode(await self._process.stdout.readexactly(size))

    @property
    def has_been_ready(self) -> bool:
        return self._fork != 0

    def lower_priority(self) -> None:
        """The check runs when nobody else wants the core, and leaves it at once."""
        self.has_low_priority = True
        with contextlib.suppress(OSError):  # it has ended already
            os.sched_setscheduler(self._fork, os.SCHED_IDLE, os.sched_param(0))

    async def yield_to_others(self) -> None:
        """Have the check rest whenever it has no core to itself: what it gets done on the time that is left over is
        little, and whoever else runs there is slower for it."""
        fork = self._fork
        with contextlib.suppress(ProcessLookupError):
            try:
                while True:
                    began_s, before_s = time.monotonic(), _processor_s(fork)
                    await asyncio.sleep(SLICE_S)
                    if _processor_s(fork) - before_s < (time.monotonic() - began_s) / 2:
                        os.kill(fork, signal.SIGSTOP)
                        await asyncio.sleep(REST_S)
                        os.kill(fork, signal.SIGCONT)
            finally:
                os.kill(fork, signal.SIGCONT)

    def check_processor_s(self) -> float:
        """Processor time that the check has taken so far; 0.0 if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            return _processor_s(self._fork)
        return 0.0

    def kill_check(self) -> None:
        """Its answer is `Ended`, unless it is on its way already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._fork, signal.SIGKILL)

    async def end(self) -> None:
        """Kill what still runs. Twice is once."""
        self.kill()
        if self._pidfd is not None:
            pidfd, self._pidfd = self._pidfd, None
            os.close(pidfd)
        if self._process is not None:
            await self._process.wait()

    def kill(self) -> None:
        """Nobody waits for it. Not by the process object, which would wait for the process itself and take the status
        away from the loop."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _processor_s(pid: int) -> float:
    """Processor time that a process has taken so far. Raises ProcessLookupError."""
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    except OSError:
        raise ProcessLookupError(pid) from None
