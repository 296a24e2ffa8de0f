"""A Callboard server as a child process, for benchmarks and tests: started, watched and ended by its pid."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_READY = "ready "


class ServerFailed(Exception):
    """The server ended before it was ready; `status` and `log` say how."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(f"the server ended with status {status} before it was ready:\n{log}")
        self.status, self.log = status, log


class ServerProcess:
    """`with ServerProcess(MODEL, "--dtype", "float32") as server:`; `server.url` serves until the block ends."""

    def __init__(
        self, *args: str, command: Sequence[str] = (sys.executable, "-P", "-m", "callboard.cli.main", "serve")
    ) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._command = [*command, *args, *([] if "--port" in args else ["--port", "0"])]
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self.pid = self.process.pid
        self.url = ""

    def wait_ready(self) -> str:
        """The server's URL, once it prints its ready line. Raises ServerFailed."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(_READY):
                self.url = line.removeprefix(_READY).strip()
                return self.url
        raise ServerFailed(self.process.wait(), self.log())

    def __enter__(self) -> ServerProcess:
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def terminate(self) -> None:
        """SIGTERM: drain and stop."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Exit status, once the server has ended."""
        return self.process.wait()

    def close(self) -> None:
        """Stop at once if it still runs; its children go with it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def log(self) -> str:
        """What the server and its children wrote to standard error so far."""
        self._log.flush()
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def children(self) -> list[int]:
        """Pids of the processes that the supervisor started and that are still there."""
        children = []
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                match = re.search(r"^PPid:\s+(\d+)", status.read_text(), re.MULTILINE)
            except OSError:
                continue
            if match and int(match.group(1)) == self.pid:
                children.append(int(status.parent.name))
        return children

    def pid_of(self, process: str) -> int:
        """Pid of the newest incarnation of a process that reported ready."""
        return int(re.findall(rf"process\.ready process={process} pid=(\d+)", self.log())[-1])
