"""Descriptors, mappings, memory: what is taken is given back, what does not fit is refused with its numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.errors import ConfigError, EndOfStream, NotEnoughMemory, ProtocolViolation
from callboard.shm_queue import (
    BoardLayout,
    BoardReader,
    BoardWriter,
    ProgressPage,
    close_board,
    create_board,
    create_progress_page,
    seal_board,
)

LAYOUT = BoardLayout(name="call", epoch=1, num_slots=3, slot_bytes=100, num_readers=2)


def open_descriptors() -> dict[str, str]:
    """Descriptor -> what it is, of this process; the one that lists them is left out."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[entry] = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:
            continue
    return found


def shared_mappings() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line]


def test_a_hundred_lives_of_a_board_leave_nothing_behind() -> None:
    descriptors, mappings = open_descriptors(), shared_mappings()
    for epoch in range(100):
        layout = BoardLayout("call", epoch, 3, 100, 2)
        fds = create_board(layout)
        writer = BoardWriter(layout, fds)
        readers = [BoardReader(layout, fds, index) for index in range(2)]
        writer.publish_nowait(b"x")
        assert [reader.receive_nowait() for reader in readers] == [b"x", b"x"]
        assert seal_board(layout, fds) == 1
        with pytest.raises(EndOfStream):
            readers[0].receive()
        with pytest.raises(ProtocolViolation):
            BoardReader(layout, {name: fd for name, fd in fds.items() if "credit" not in name}, 0)
        close_board(fds)
        for end in (writer, *readers):
            end.detach()
            end.detach()
        fd = create_progress_page(2)
        page = ProgressPage(fd, 2)
        os.close(fd)
        page.line(1).mark(step=epoch)
        del page
    assert open_descriptors() == descriptors
    assert shared_mappings() == mappings


def test_names_and_order_of_the_descriptors_are_those_of_the_layout(make_board) -> None:
    names = [
        "call.memory",
        "call.doorbell.0",
        "call.doorbell.1",
        "call.credit.0",
        "call.credit.1",
    ]
    fds = make_board(LAYOUT)
    assert list(fds) == names
    assert not any(os.get_inheritable(fd) for fd in fds.values())


def test_the_memory_is_there_from_the_start_and_cannot_be_cut(make_board) -> None:
    fds = make_board(BoardLayout("call", 1, 3, 1 << 20, 1))
    status = os.fstat(fds["call.memory"])
    assert status.st_size >= 3 << 20
    assert status.st_blocks * 512 >= status.st_size
    with pytest.raises(PermissionError):
        os.ftruncate(fds["call.memory"], 0)


def test_more_memory_than_there_is_is_refused_with_numbers() -> None:
    with pytest.raises(NotEnoughMemory, match=r"call\.memory needs 4,503,599,627,3\d\d,\d{3} bytes .* are available"):
        create_board(BoardLayout("call", 1, 1, 1 << 51, 1))


def test_a_failing_allocation_is_refused_with_numbers_and_leaves_nothing_open() -> None:
    program = """
import os, resource
from callboard.errors import NotEnoughMemory
from callboard.shm_queue import BoardLayout, create_board
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
before = os.listdir("/proc/self/fd")
try:
    create_board(BoardLayout("call", 1, 1, 65472, 1))
except NotEnoughMemory as error:
    print(error)
assert os.listdir("/proc/self/fd") == before
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "call.memory needs 131,136 bytes" in done.stdout
    assert "File too large" in done.stdout


@pytest.mark.parametrize("field", ["num_slots", "slot_bytes", "num_readers"])
def test_an_impossible_layout_is_refused(field: str) -> None:
    numbers = {"name": "call", "epoch": 1, "num_slots": 1, "slot_bytes": 1, "num_readers": 1, field: 0}
    with pytest.raises(ConfigError, match=f"{field} is 0, it must be at least 1"):
        create_board(BoardLayout(**numbers))


def test_an_epoch_that_is_no_64_bit_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="epoch is -1"):
        create_board(BoardLayout("call", -1, 1, 1, 1))


def test_a_missing_descriptor_is_named(make_board) -> None:
    fds = make_board(LAYOUT)
    partial = {name: fd for name, fd in fds.items() if name != "call.credit.1"}
    BoardReader(LAYOUT, partial, 0).detach()
    with pytest.raises(ProtocolViolation, match=r"'call\.credit\.1' is missing"):
        BoardWriter(LAYOUT, partial)
    with pytest.raises(ProtocolViolation, match=r"'call\.memory' is missing; got none"):
        BoardReader(LAYOUT, {}, 0)


def test_memory_of_another_size_and_a_reader_too_many_are_refused(make_board) -> None:
    fds = make_board(LAYOUT)
    with pytest.raises(ProtocolViolation, match="the layout says"):
        BoardWriter(BoardLayout("call", 1, 4, 100, 2), fds)
    for reader in (-1, 2):
        with pytest.raises(ProtocolViolation, match=f"has 2 readers, there is no reader {reader}"):
            BoardReader(LAYOUT, fds, reader)


def test_the_ends_outlive_the_creators_descriptors() -> None:
    fds = create_board(LAYOUT)
    writer, reader = BoardWriter(LAYOUT, fds), BoardReader(LAYOUT, fds, 0)
    close_board(fds)
    writer.publish_nowait(b"x")
    assert reader.receive() == b"x"
    writer.detach()
    reader.detach()
