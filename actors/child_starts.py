"""How a child process comes to be: by a command, or as a fork of this process, which has imported what all need."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from typing import Protocol

from .control import control_pair

SPIN_COUNT = "10000"
"""How long an OpenMP thread of libgomp spins at a barrier before it sleeps: about 0.2 ms.

Its own default, some 5 ms, is longer than a time slice, so that on busy cores each barrier waits for a thread that a
spinning one keeps from running. Output tokens/s at 1 and 16 streams, float32, 2 cores (AMD EPYC, AVX2): idle machine,
default 23.0 and 154, 10,000 21.3 and 133, 3,000 20.3 and 129; under a load of 5, default 1.0 and 15, 30,000 2.9 and 26,
3,000 10.8 and 71.
"""
DEVICE_ORDER = "PCI_BUS_ID"


class Process(Protocol):
    """A child, as whoever started it holds it."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Its exit status once it has ended; negative: the signal."""
        ...

    def kill(self) -> None: ...


class ChildStart(Protocol):
    """Starts children."""

    def start(self, name: str) -> tuple[Process, socket.socket]:
        """A process and our end of its control socket, everything else travels over that. Raises OSError."""
        ...


class CommandStart:
    """By a command; ` --control-fd N --parent-pid P` is appended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    def start(self, name: str) -> tuple[Process, socket.socket]:
        ours, theirs = control_pair()
        try:
            process = subprocess.Popen(
                [*self._command, "--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **child_environment()},
                stdout=2,  # standard output is the supervisor's: it carries the ready line alone
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return process, ours


def child_environment() -> dict[str, str]:
    """What is set for children: GPUs are counted as their driver counts them, and libgomp's spinning is bounded unless
    the user has said how its threads shall wait."""
    environment = {"CUDA_DEVICE_ORDER": DEVICE_ORDER}
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT
    return environment
