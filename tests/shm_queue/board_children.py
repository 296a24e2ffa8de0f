"""The testing side of board_forker.py: children that cost a fork each."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from callboard.tests.shm_queue.board_forker import Fork, Wait

SCRIPT = Path(__file__).with_name("board_forker.py")
WATCHDOG_S = 60.0
PIPE_BYTES = 1 << 20


class ForkedEnd:
    """A child in some role; its pid is valid until `wait_end` has returned or `close` was called."""

    def __init__(self, forker: Forker, fork: Fork, fds: Mapping[str, int]) -> None:
        self.forker = forker
        report_fd, their_report_fd = os.pipe()
        # Room for all that a child says, so that it never waits for the test to read.
        fcntl.fcntl(report_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.reports = open(report_fd, "rb")  # noqa: SIM115 - closed in close()
        self.go_fd = os.eventfd(0)
        everything = {**fds, "report": their_report_fd, "go": self.go_fd}
        fork.names = list(everything)
        self.pid = forker.ask(fork, tuple(everything.values()))
        os.close(their_report_fd)
        self.is_running = True

    def go(self) -> None:
        """Let its round begin."""
        os.eventfd_write(self.go_fd, 1)

    def line(self) -> str:
        """Its next report; waits for it. Empty if it has ended."""
        return self.reports.readline().decode().strip()

    def lines_left(self) -> list[str]:
        """All reports to its end; waits for that."""
        return self.reports.read().decode().split("\n")[:-1]

    def wait(self) -> int:
        """Its status as `os.waitpid` reports it, once it has ended or stopped."""
        status = self.forker.ask(Wait(self.pid))
        self.is_running = os.WIFSTOPPED(status)
        return status

    def send(self, signal_number: int) -> None:
        os.kill(self.pid, signal_number)

    def close(self) -> None:
        """Kill it, and close what belongs to it. Twice is once."""
        if self.reports.closed:
            return
        if self.is_running:
            self.send(signal.SIGKILL)
            while self.is_running:
                self.wait()
        self.reports.close()
        os.close(self.go_fd)


class Forker:
    """The warm process; ends when it is closed."""

    def __init__(self) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(WATCHDOG_S)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OPENBLAS_NUM_THREADS": "1",
            },
        )
        theirs.close()

    def ask(self, request: Fork | Wait, fds: tuple[int, ...] = ()) -> int:
        socket.send_fds(self.sock, [msgspec.json.encode(request)], fds)
        return int(self.sock.recv(64))

    def start(self, fork: Fork, fds: Mapping[str, int]) -> ForkedEnd:
        return ForkedEnd(self, fork, fds)

    def close(self) -> None:
        self.sock.close()
        self.process.wait()
