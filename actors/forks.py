"""Children that are forks of the supervisor's process: what it has imported they have too, in the same memory.

A fork takes the supervisor's descriptors, signals and half-done coroutines along. It gives back or forgets all of them
before it does anything else, and never returns to the code that forked.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress

from .child_starts import Process, child_environment
from .control import control_pair
from .parent_death import die_with_parent

ChildMain = Callable[[str, int], int]
"""Runs a child, given its name and the descriptor of its control socket; returns its exit status."""
_ALL_SIGNALS = signal.valid_signals()
_NUM_STANDARD = 3
_MAX_COMM_CHARS = 15


class ForkedProcess:
    """A child, by its number."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def wait(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkStart:
    """Forks children. It is used in one thread, the process's only one, which lives as long as they."""

    def __init__(self, run: ChildMain) -> None:
        self._run = run
        self._early: dict[str, tuple[Process, socket.socket]] = {}

    def start(self, name: str) -> tuple[Process, socket.socket]:
        return self._early.pop(name, None) or _fork(name, self._run)

    def start_early(self, name: str) -> None:
        """A child that imports its parts while the caller finds out what to tell it."""
        self._early[name] = _fork(name, self._run)

    def close(self) -> None:
        """End those that nobody has asked for."""
        for process, control in self._early.values():
            process.kill()
            process.wait()
            control.close()
        self._early.clear()


def _fork(name: str, run: ChildMain) -> tuple[Process, socket.socket]:
    ours, theirs = control_pair()
    parent_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        pid = os.fork()
        if not pid:
            _be_child(name, run, theirs.fileno(), parent_pid, child_environment(), mask)
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    return ForkedProcess(pid), ours


def _be_child(
    name: str, run: ChildMain, control_fd: int, parent_pid: int, environment: Mapping[str, str], mask: set[int]
) -> None:
    """Does not return."""
    status = 1
    try:
        gc.freeze()  # what the supervisor holds is never collected here: it would close descriptors of these numbers
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        die_with_parent(parent_pid)
        _keep_descriptors(control_fd)
        atexit._clear()
        os.environ.update(environment)
        if not sys.flags.safe_path:
            del sys.path[0]  # as `python -P` would have it: the folder that the supervisor was started in
        _show_name(name)
        status = run(name, control_fd)
        threading._shutdown()  # type: ignore[attr-defined]
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(status)


def _keep_descriptors(control_fd: int) -> None:
    """Standard error and the control socket. Standard output is the supervisor's: it carries the ready line alone."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    for fd in map(int, os.listdir("/proc/self/fd")):  # the limit may be a thousand million
        if fd >= _NUM_STANDARD and fd != control_fd:
            with suppress(OSError):  # the listing's own
                os.close(fd)


def _show_name(name: str) -> None:
    """In `ps -o comm` and `top`, where it may be written."""
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(f"callboard-{name}"[:_MAX_COMM_CHARS])
