"""A peer's process: its standard error in a file, its end certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from .peer import PeerFailed
from .process_tree import TreeMemory, tree_memory

_STOP_GRACE_S = 20.0
_MAX_LAST_LINES = 12


class Child:
    """Runs in a session of its own, so that what it started ends with it."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str], pipes: bool) -> None:
        """`pipes`: standard input and output are text pipes; else input is empty and output goes to the log.

        Raises PeerFailed.
        """
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else self._log,
                stderr=self._log,
                env={**os.environ, **environment},
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise PeerFailed(f"cannot be started: {error}") from error
        self.pid = self.process.pid

    def fail(self, what: str) -> PeerFailed:
        """The error to raise: `what`, and the last lines of the log."""
        size = os.fstat(self._log.fileno()).st_size
        log = os.pread(self._log.fileno(), size, 0).decode(errors="replace")
        return PeerFailed("\n".join([what, *log.splitlines()[-_MAX_LAST_LINES:]]))

    def close(self) -> None:
        """SIGTERM, or the end of its input, and SIGKILL to what is left of its session."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        else:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_GRACE_S)
        with contextlib.suppress(ProcessLookupError):  # the usual case: all have ended
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


class ChildPeer:
    """What peers that are a process have in common: none before they are started and after they are stopped."""

    _child: Child | None = None

    def memory(self) -> TreeMemory:
        if self._child is None:
            raise PeerFailed("does not run")
        if self._child.process.poll() is not None:
            raise self._child.fail(f"ended with status {self._child.process.returncode}")
        return tree_memory(self._child.pid)

    def stop(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None
