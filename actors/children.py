"""One child process as the supervisor holds it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence

from ..errors import WouldBlock
from ..mailbox.messages.control import ChildToSupervisor, Failed, SupervisorToChild
from .control import ControlSocket, control_pair


class Child:
    """A process, its pidfd, its control socket, and what it said."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        process: subprocess.Popen[bytes],
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


SPIN_COUNT = "10000"
"""How long an OpenMP thread of libgomp spins at a barrier before it sleeps: about 0.2 ms.

Its own default, some 5 ms, is longer than a time slice, so that on busy cores each barrier waits for a thread that a
spinning one keeps from running. Output tokens/s at 1 and 16 streams, float32, 2 cores (AMD EPYC, AVX2): idle machine,
default 23.0 and 154, 10,000 21.3 and 133, 3,000 20.3 and 129; under a load of 5, default 1.0 and 15, 30,000 2.9 and 26,
3,000 10.8 and 71.
"""


DEVICE_ORDER = "PCI_BUS_ID"


def spawn(name: str, incarnation: int, command: Sequence[str]) -> Child:
    """Start a child with one end of a control socket; everything else travels over that."""
    ours, theirs = control_pair()
    try:
        process = subprocess.Popen(
            [*command, "--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=_environment(),
            stdout=2,  # standard output is the supervisor's: it carries the ready line alone
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    try:
        return Child(name, incarnation, process, ControlSocket(ours, ChildToSupervisor))
    except BaseException:  # no descriptor was left for its pidfd
        process.kill()
        process.wait()
        ours.close()
        raise


def _environment() -> dict[str, str]:
    """Ours, with GPUs counted as their driver counts them, and with libgomp's spinning bounded unless the user has said
    how its threads shall wait."""
    environment = {**os.environ, "CUDA_DEVICE_ORDER": DEVICE_ORDER}
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    return environment
