"""The progress page: lines of words that any process can read."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from callboard.errors import ProtocolViolation
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.shm_queue import Phase, ProgressPage, create_progress_page


class TooMany(msgspec.Struct):
    __annotations__ = {f"word_{index}": int for index in range(65)}


Full = msgspec.defstruct("Full", [(f"word_{index}", int) for index in range(64)])


@pytest.fixture
def page_fd():
    fd = create_progress_page(3)
    yield fd
    os.close(fd)


def test_a_new_line_says_starting_and_nothing_else(page_fd: int) -> None:
    line = ProgressPage(page_fd, 3).line(2)
    assert line.phase is Phase.STARTING
    assert (line.pid, line.incarnation, line.step, line.sequence, line.time_ns) == (0, 0, 0, 0, 0)
    assert line.read_statistics(SchedulerStatistics) == SchedulerStatistics()


def test_what_one_mapping_writes_another_reads(page_fd: int) -> None:
    writer, reader = ProgressPage(page_fd, 3).line(1), ProgressPage(page_fd, 3).line(1)
    writer.pid, writer.incarnation, writer.step, writer.sequence, writer.time_ns = 11, 12, 13, 14, 2**64 - 1
    writer.phase = Phase.STEPPING
    assert (reader.pid, reader.incarnation, reader.step, reader.sequence) == (11, 12, 13, 14)
    assert reader.time_ns == 2**64 - 1
    assert reader.phase is Phase.STEPPING


def test_every_phase_can_be_told(page_fd: int) -> None:
    names = ["STARTING", "LOADING", "WARMING", "SERVING", "STEPPING", "IDLE", "WAITING"]
    assert [phase.name for phase in Phase] == names
    line = ProgressPage(page_fd, 3).line(0)
    for phase in Phase:
        line.mark(phase=phase)
        assert line.phase is phase


def test_mark_stamps_the_time_and_leaves_what_is_not_given(page_fd: int) -> None:
    line = ProgressPage(page_fd, 3).line(0)
    before_ns = time.monotonic_ns()
    line.mark(phase=Phase.STEPPING, step=5, sequence=6)
    assert before_ns <= line.time_ns <= time.monotonic_ns()
    stamped_ns = line.time_ns
    line.mark(phase=Phase.IDLE)
    assert (line.phase, line.step, line.sequence) == (Phase.IDLE, 5, 6)
    line.mark()
    assert line.time_ns >= stamped_ns


def test_only_a_step_on_the_device_has_a_beginning(page_fd: int) -> None:
    line = ProgressPage(page_fd, 3).line(0)
    assert line.stepping_since_ns == 0
    before_ns = time.monotonic_ns()
    line.mark(phase=Phase.STEPPING)
    began_ns = line.stepping_since_ns
    assert before_ns <= began_ns <= time.monotonic_ns()
    line.mark(step=5)
    assert line.stepping_since_ns == began_ns, "progress within a step is no new step"
    line.mark(phase=Phase.IDLE)
    assert line.stepping_since_ns == 0


def test_statistics_come_back_as_they_were(page_fd: int) -> None:
    line = ProgressPage(page_fd, 3).line(0)
    *numbers, _ = SchedulerStatistics.__struct_fields__
    words = range(2**63, 2**63 + len(numbers))
    statistics = SchedulerStatistics(*words, accepted_at=tuple(range(7, 23)))
    line.set_statistics(statistics)
    assert line.read_statistics(SchedulerStatistics) == statistics
    full = Full(*range(100, 164))
    line.set_statistics(full)
    assert line.read_statistics(Full) == full
    assert (line.pid, line.incarnation, line.step, line.sequence, line.time_ns) == (0, 0, 0, 0, 0)


def test_lines_do_not_touch_each_other(page_fd: int) -> None:
    page = ProgressPage(page_fd, 3)
    for index in range(3):
        page.line(index).set_statistics(Full(*[index] * 64))
        page.line(index).mark(phase=Phase(index), step=index, sequence=index)
    for index in range(3):
        line = page.line(index)
        assert line.read_statistics(Full) == Full(*[index] * 64)
        assert (line.phase, line.step, line.sequence) == (index, index, index)


def test_statistics_that_do_not_fit_are_refused(page_fd: int) -> None:
    line = ProgressPage(page_fd, 3).line(0)
    with pytest.raises(ValueError, match="65 words, a line has 64"):
        line.set_statistics(TooMany(*range(65)))
    with pytest.raises(OverflowError):
        line.set_statistics(SchedulerStatistics(num_running=2**64))


def test_words_are_aligned(page_fd: int) -> None:
    """The phase of line i is the first of its 80 words of 8 bytes."""
    page = ProgressPage(page_fd, 3)
    for index in range(3):
        page.line(index).phase = Phase(index + 1)
    with mmap.mmap(page_fd, 3 * 640) as memory:
        assert [memory[640 * index] for index in range(3)] == [1, 2, 3]


def test_a_line_keeps_the_page_and_needs_no_descriptor() -> None:
    fd = create_progress_page(1)
    line = ProgressPage(fd, 1).line(0)
    os.close(fd)
    line.mark(step=3)
    assert line.step == 3


def test_a_page_of_another_size_and_a_line_too_many_are_refused(page_fd: int) -> None:
    with pytest.raises(ProtocolViolation, match="the layout says"):
        ProgressPage(page_fd, 4)
    for index in (-1, 3):
        with pytest.raises(IndexError):
            ProgressPage(page_fd, 3).line(index)


def test_a_line_of_another_process_is_read_after_its_death(page_fd: int) -> None:
    program = """
import os, signal, sys
from callboard.shm_queue import Phase, ProgressPage
line = ProgressPage(int(sys.argv[1]), 3).line(0)
line.pid = os.getpid()
line.mark(phase=Phase.STEPPING, step=9)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    child = subprocess.Popen([sys.executable, "-P", "-c", program, str(page_fd)], pass_fds=(page_fd,), env=environment)
    assert child.wait() == -signal.SIGKILL
    line = ProgressPage(page_fd, 3).line(0)
    assert (line.pid, line.phase, line.step) == (child.pid, Phase.STEPPING, 9)
