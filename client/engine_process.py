"""`callboard serve` as a child process of this one: started, awaited, stopped, and never left behind.

It ends with this process, or with the thread that started it (parent-death signal), and its own children end with it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from ..errors import StartFailed

_READY = b"ready "
_SCREEN = re.compile(
    r"^callboard could not start \(phase: (?P<phase>.*)\)\n  cause:  (?P<cause>.*?)(?:\n  advice: (?P<advice>.*))?\n\Z",
    re.MULTILINE | re.DOTALL,
)
_MAX_LAST_LINES = 20


class EngineProcess:
    """Construct it in a coroutine of the loop that will use it, in a thread that lives as long."""

    def __init__(self, arguments: list[str]) -> None:
        """`arguments`: of `callboard serve`. Raises StartFailed if no process can be made."""
        serve = [sys.executable, "-P", "-m", "callboard.cli.main", "serve", *arguments]
        command = [sys.executable, "-P", "-m", "callboard.actors.parent_death", str(os.getpid()), *serve]
        self._loop = asyncio.get_running_loop()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                bufsize=0,
                process_group=0,  # Ctrl-C, and a notebook's interrupt, are for this process alone
            )
        except OSError as error:
            self._log.close()
            raise StartFailed(f"no process can be started: {error}") from error
        self.pid = self._process.pid
        self._ended = asyncio.Event()
        self._output: asyncio.ReadTransport | None = None
        self._pidfd = -1

    async def wait_ready(self) -> str:
        """The engine's URL once it serves. Raises StartFailed with what its start screen says."""
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._on_exit)
        url: asyncio.Future[str | None] = self._loop.create_future()
        self._output, _ = await self._loop.connect_read_pipe(lambda: _Output(url), self._process.stdout)
        ready = await url
        if ready is None:
            await self._ended.wait()
            raise self._start_failure()
        return ready

    async def stop(self, timeout_s: float) -> int:
        """Ask it to drain and stop, wait until it has; its exit status. It is killed if it takes longer."""
        try:
            if not self._ended.is_set():
                self._process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            self.close()
        return self._process.wait()

    def close(self) -> None:
        """Kill it if it still runs; when this returns it is gone. May be called twice."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._ended.set()
        if self._output is not None:
            self._output.close()
        elif self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def log(self) -> str:
        """What the engine has written to its standard error so far; empty once it was closed."""
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._process.wait()
        self._ended.set()

    def _start_failure(self) -> StartFailed:
        log = self.log()
        screen = _SCREEN.search(log)
        if screen is not None:
            return StartFailed(screen["cause"], advice=screen["advice"] or "", phase=screen["phase"])
        last = "\n".join(log.splitlines()[-_MAX_LAST_LINES:])
        status = self._process.returncode
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return StartFailed(f"the engine ended with {how} before it was ready; its last lines:\n{last}")


class _Output(asyncio.Protocol):
    """The engine's standard output: its first line names the URL, and what comes later is thrown away."""

    def __init__(self, url: asyncio.Future[str | None]) -> None:
        self._url = url
        self._received = b""

    def data_received(self, data: bytes) -> None:
        if self._url.done():
            return
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            if line.startswith(_READY) and not self._url.done():
                self._url.set_result(line.removeprefix(_READY).decode().strip())

    def connection_lost(self, error: Exception | None) -> None:
        if not self._url.done():
            self._url.set_result(None)


def private_file(path: Path, content: str) -> str:
    """Write a file that nobody else can read; its path."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(content)
    return str(path)
