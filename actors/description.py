"""What a running engine says of itself to whoever looks at its supervisor from outside, without asking anybody.

The supervisor holds two memfds: the progress page and, beside it, a description that names the page's lines. Both are
found in /proc/PID/fd by any process of the same user. They are there while the supervisor is, frozen or not, and go
with it: no file can be left behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import ProtocolViolation
from ..shm_queue import ProgressLine, ProgressPage
from ..topology import expand_actors
from .launch import Launch

_NAME = "callboard-engine"
_PAGE_NAME = "progress"
_MAX_BYTES = 1 << 20


class DescribedProcess(msgspec.Struct, frozen=True):
    """A process of the topology."""

    name: str
    actors: tuple[str, ...]


class EngineDescription(msgspec.Struct, frozen=True):
    """The contents of the description, as JSON."""

    url: str
    model: str
    page_inode: int
    """Of the progress page's memfd: one supervisor's process may hold several engines."""
    processes: tuple[DescribedProcess, ...]
    """In the order of the page's lines."""


def describe_engine(page_fd: int, url: str, launch: Launch) -> int:
    """Make the description of an engine whose progress page is `page_fd`; returns its memfd, which is the caller's.

    Raises OSError.
    """
    description = EngineDescription(
        url=url,
        model=launch.topology.model.served_name or launch.checkpoint.name,
        page_inode=os.fstat(page_fd).st_ino,
        processes=tuple(DescribedProcess(name, actors) for name, actors in expand_actors(launch.topology).items()),
    )
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, msgspec.json.encode(description))
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


class RunningEngine:
    """An engine seen from outside: its supervisor's pid, its description, and its progress page, mapped for reading."""

    def __init__(self, pid: int, description: EngineDescription, page: ProgressPage) -> None:
        self.pid, self.description, self._page = pid, description, page

    def lines(self) -> Iterator[tuple[str, str, ProgressLine]]:
        """(process, actor, progress line) of all actors."""
        names = [(process.name, actor) for process in self.description.processes for actor in process.actors]
        for index, (process, actor) in enumerate(names):
            yield process, actor, self._page.line(index)


def find_engines() -> list[RunningEngine]:
    """All engines of this user on this machine, by pid."""
    pids = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [engine for pid in pids for engine in engines_of(pid)]


def engines_of(pid: int) -> list[RunningEngine]:
    """The engines whose supervisor is in process `pid`: none if it is no supervisor, has ended or is another user's."""
    descriptions, pages = _memfds(pid, _NAME), _memfds(pid, _PAGE_NAME)
    engines: list[RunningEngine] = []
    for path in descriptions.values():
        try:
            description = msgspec.json.decode(_read(path), type=EngineDescription)
            page = _open_page(pages[description.page_inode], description)
        except (OSError, KeyError, msgspec.DecodeError, ProtocolViolation):
            continue  # it ends right now, was forked and has only one of the two, or is of another version
        engines.append(RunningEngine(pid, description, page))
    return engines


def _memfds(pid: int, name: str) -> dict[int, str]:
    """Inode -> path in /proc of each memfd of that name that the process holds."""
    found: dict[int, str] = {}
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(entry.path).startswith(f"/memfd:{name} "):
                    found[os.stat(entry.path).st_ino] = entry.path
            except OSError:
                continue  # closed in between
    except OSError:
        return {}
    return found


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_BYTES)


def _open_page(path: str, description: EngineDescription) -> ProgressPage:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return ProgressPage(fd, sum(len(process.actors) for process in description.processes), is_writable=False)
    finally:
        os.close(fd)
