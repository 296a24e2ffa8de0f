"""One child process as the supervisor holds it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

from ..errors import WouldBlock
from ..mailbox.messages.control import ChildToSupervisor, Failed, SupervisorToChild
from .child_starts import ChildStart, Process
from .control import ControlSocket


class Child:
    """A process, its pidfd, its control socket, and what it said."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        process: Process,
        control: ControlSocket[SupervisorToChild, ChildToSupervisor],
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self.control = control
        self.is_ready = False
        self.epoch = 0
        """Of the boards that its scheduler has; 0: none."""
        self.kill_reason: str | None = None
        """Why the supervisor killed it."""
        self.failed: Failed | None = None
        self.status: int | None = None
        """Exit status; negative: the signal; None while it runs."""
        self._process = process
        self._is_closed = False
        self._exited = asyncio.Event()

    def reap(self) -> None:
        """Called when the pidfd says that the process has ended."""
        self.status = self._process.wait()
        self._exited.set()

    def send(self, message: SupervisorToChild, fds: Sequence[int] = ()) -> None:
        """Send a control message. A child that has left hundreds of them unread is killed: it will not come to."""
        try:
            self.control.send(message, fds)
        except WouldBlock as error:
            self.kill_reason = self.kill_reason or str(error)
            self.kill()

    def kill(self) -> None:
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def wait_exit(self, timeout_s: float | None) -> None:
        """Wait for the end of the process; kill it after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
        except TimeoutError:
            self.kill()
            await self._exited.wait()

    def describe_status(self) -> str:
        if self.status is None:
            return "no status yet"
        return signal.Signals(-self.status).name if self.status < 0 else f"exit status {self.status}"

    def cause(self) -> str:
        """Why it ended, in its own words if it could still say."""
        if self.kill_reason is not None:
            return f"killed, for {self.kill_reason}"
        return self.failed.cause if self.failed is not None else self.describe_status()

    def close(self) -> None:
        """Give the descriptors back. May be called twice; messages to it are dropped from then on."""
        if not self._is_closed:
            self._is_closed = True
            self.control.close()
            os.close(self.pidfd)


def spawn(name: str, incarnation: int, start: ChildStart) -> Child:
    """Start a child. Raises OSError."""
    process, ours = start.start(name)
    try:
        return Child(name, incarnation, process, ControlSocket(ours, ChildToSupervisor))
    except BaseException:  # no descriptor was left for its pidfd
        process.kill()
        process.wait()
        ours.close()
        raise
