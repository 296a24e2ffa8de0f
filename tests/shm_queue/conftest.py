"""The variants of a reader over which the conformance suite runs, and child processes that hold one end of a board."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import pytest
import uvloop

from callboard.errors import CallboardError, WouldBlock
from callboard.shm_queue import BoardLayout, BoardReader, close_board, create_board

WATCHDOG_S = 60.0
CHILD = Path(__file__).with_name("board_child.py")


class RunningReader(Protocol):
    """A reader at work somewhere."""

    def received(self, num_records: int) -> list[bytes]:
        """The next `num_records` records; waits for them."""

    def outcome(self) -> str:
        """Class name of the error that ended the reader; waits for it."""

    def stop(self) -> None:
        """End it, whatever it does."""


class SameThread:
    """Takes records when it is asked to."""

    def __init__(self, layout: BoardLayout, fds: Mapping[str, int], reader: int) -> None:
        self.reader = BoardReader(layout, fds, reader)

    def received(self, num_records: int) -> list[bytes]:
        return [self.reader.receive_nowait() for _ in range(num_records)]

    def outcome(self) -> str:
        with pytest.raises(CallboardError) as caught:
            self.reader.receive_nowait()
        return type(caught.value).__name__

    def stop(self) -> None:
        self.reader.detach()


class Queued:
    """Base of those that report through a queue: records as bytes, the end as text."""

    def __init__(self) -> None:
        self.reports: queue.SimpleQueue[bytes | str] = queue.SimpleQueue()

    def received(self, num_records: int) -> list[bytes]:
        records = [self.reports.get(timeout=WATCHDOG_S) for _ in range(num_records)]
        assert all(isinstance(record, bytes) for record in records), records
        return records

    def outcome(self) -> str:
        report = self.reports.get(timeout=WATCHDOG_S)
        assert isinstance(report, str), f"one record too many: {report!r}"
        return report


class OtherThread(Queued):
    """A thread in the blocking receive; stopped through the wake descriptor."""

    def __init__(self, layout: BoardLayout, fds: Mapping[str, int], reader: int) -> None:
        super().__init__()
        self.wake_fd = os.eventfd(0)
        self.reader = BoardReader(layout, fds, reader, wake_fd=self.wake_fd)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        try:
            while True:
                self.reports.put(self.reader.receive())
        except CallboardError as error:
            self.reports.put(type(error).__name__)

    def stop(self) -> None:
        os.eventfd_write(self.wake_fd, 1)
        self.thread.join()
        self.reader.detach()
        os.close(self.wake_fd)


class EventLoop(Queued):
    """A reader watched by an asyncio loop (in a thread, so that the test can publish and wait)."""

    new_loop = staticmethod(asyncio.new_event_loop)

    def __init__(self, layout: BoardLayout, fds: Mapping[str, int], reader: int) -> None:
        super().__init__()
        self.reader = BoardReader(layout, fds, reader)
        self.loop = self.new_loop()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        self.loop.add_reader(self.reader.fileno(), self.take_waiting)
        self.loop.run_forever()
        self.loop.close()

    def take_waiting(self) -> None:
        try:
            while True:
                self.reports.put(self.reader.receive_nowait())
        except WouldBlock:
            return
        except CallboardError as error:
            self.loop.remove_reader(self.reader.fileno())
            self.reports.put(type(error).__name__)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.reader.detach()


class UVLoop(EventLoop):
    """The same on uvloop."""

    new_loop = staticmethod(uvloop.new_event_loop)


class Child(Queued):
    """A process that runs a role of board_child.py over inherited descriptors."""

    def __init__(self, role: str, layout: BoardLayout, fds: Mapping[str, int], argument: int) -> None:
        super().__init__()
        arguments = [role, msgspec.json.encode(layout).decode(), json.dumps(dict(fds)), str(argument)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(fds.values()),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self.pump = threading.Thread(target=self.report)
        self.pump.start()

    def report(self) -> None:
        for line in self.process.stdout:
            text = line.decode().strip()
            try:
                self.reports.put(bytes.fromhex(text))
            except ValueError:
                self.reports.put(text.removeprefix("!"))

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.kill()
        self.pump.join()
        self.process.stdin.close()
        self.process.stdout.close()


def other_process(layout: BoardLayout, fds: Mapping[str, int], reader: int) -> Child:
    return Child("read", layout, fds, reader)


StartReader = Callable[[BoardLayout, Mapping[str, int], int], RunningReader]
VARIANTS: dict[str, StartReader] = {
    "same_thread": SameThread,
    "other_thread": OtherThread,
    "event_loop": EventLoop,
    "uvloop": UVLoop,
    "other_process": other_process,
}


@pytest.fixture
def make_board() -> Iterator[Callable[[BoardLayout], dict[str, int]]]:
    """create_board, with its descriptors closed at the end."""
    boards: list[dict[str, int]] = []

    def make(layout: BoardLayout) -> dict[str, int]:
        boards.append(create_board(layout))
        return boards[-1]

    yield make
    for fds in boards:
        close_board(fds)


@pytest.fixture(params=list(VARIANTS))
def start_reader(request: pytest.FixtureRequest) -> Iterator[StartReader]:
    """Starts a reader of the variant; stopped at the end."""
    running: list[RunningReader] = []

    def start(layout: BoardLayout, fds: Mapping[str, int], reader: int) -> RunningReader:
        running.append(VARIANTS[request.param](layout, fds, reader))
        return running[-1]

    yield start
    for reader in running:
        reader.stop()


@pytest.fixture
def start_child() -> Iterator[Callable[[str, BoardLayout, Mapping[str, int], int], Child]]:
    """Starts a role of board_child.py; killed by its pid at the end."""
    running: list[Child] = []

    def start(role: str, layout: BoardLayout, fds: Mapping[str, int], argument: int) -> Child:
        running.append(Child(role, layout, fds, argument))
        return running[-1]

    yield start
    for child in running:
        child.stop()
