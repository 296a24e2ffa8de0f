"""Real processes that are killed or stopped in front of each line that they execute of the board's code.

The test is the supervisor: it made the board, sees the death, seals. The board has two slots, so records 1 and 2 fill
it; the struck round begins with the credits or the records already waiting.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from callboard.errors import EndOfStream, SlowPeer, WouldBlock
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter, close_board, create_board, seal_board
from callboard.tests.shm_queue.board_children import ForkedEnd, Forker
from callboard.tests.shm_queue.board_forker import MAX_BODY_BYTES, Fork, record_of

MIN_LINES = 40
"""A round has more lines than this; fewer struck means that the trace does not see the board's code."""


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    forker = Forker()
    yield forker
    forker.close()


class Scene:
    """A new board, its descriptors, the children at work on it."""

    def __init__(self, forker: Forker, num_readers: int, stack: ExitStack) -> None:
        self.forker, self.stack = forker, stack
        self.layout = BoardLayout("call", 1, 2, MAX_BODY_BYTES + 12, num_readers)
        self.fds = create_board(self.layout)
        stack.callback(close_board, self.fds)

    def fork(self, role: str, *, reader: int = 0, strike_at: int = 0, signal_number: int = 0) -> ForkedEnd:
        fork = Fork(role, self.layout, [], reader, 0, strike_at, signal_number)
        child = self.forker.start(fork, self.fds)
        self.stack.callback(child.close)
        return child

    def reader(self, index: int) -> BoardReader:
        reader = BoardReader(self.layout, self.fds, index)
        self.stack.callback(reader.detach)
        return reader

    def writer(self) -> BoardWriter:
        writer = BoardWriter(self.layout, self.fds)
        self.stack.callback(writer.detach)
        return writer


def taken(reader: BoardReader) -> list[bytes]:
    """What can be received now, without the end of the stream."""
    records = []
    try:
        while True:
            records.append(reader.receive_nowait())
    except (WouldBlock, EndOfStream):
        return records


def taken_to_the_end(reader: BoardReader) -> list[bytes]:
    records = []
    try:
        while True:
            records.append(reader.receive())
    except EndOfStream:
        return records


RECORDS = [record_of(number, 0) for number in (1, 2, 3)]


def reported(lines: list[str]) -> list[bytes]:
    return [bytes.fromhex(line) for line in lines]


def strike_writer(scene: Scene, strike_at: int, signal_number: int) -> tuple[ForkedEnd, ForkedEnd, list[BoardReader]]:
    """(writer, reader 2 in a process of its own, readers 0 and 1 here): records 1 and 2 are taken, the round runs."""
    blocked = scene.fork("receive_all", reader=2)
    writer = scene.fork("publish_round", strike_at=strike_at, signal_number=signal_number)
    readers = [scene.reader(0), scene.reader(1)]
    for reader in readers:
        assert [reader.receive(), reader.receive()] == RECORDS[:2]
    assert reported([blocked.line(), blocked.line()]) == RECORDS[:2]
    writer.go()
    return writer, blocked, readers


@pytest.mark.slow
def test_a_writer_killed_in_front_of_any_line_leaves_all_readers_at_the_same_record(forker: Forker) -> None:
    outcomes = []
    for strike_at in range(1, 1000):
        with ExitStack() as stack:
            scene = Scene(forker, 3, stack)
            writer, blocked, readers = strike_writer(scene, strike_at, signal.SIGKILL)
            status = writer.wait()
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            # Reader 0 had taken what it was told of when the board is sealed; reader 1 had not looked.
            early = taken(readers[0])
            num_told = readers[1].num_waiting()
            last = seal_board(scene.layout, scene.fds)
            assert last in (2, 3)
            assert [*early, *taken_to_the_end(readers[0])] == RECORDS[2:last]
            assert readers[1].num_waiting() == last - 2 + 1
            assert taken_to_the_end(readers[1]) == RECORDS[2:last]
            *records, end = blocked.lines_left()
            assert reported(records) == RECORDS[2:last]
            assert end == "!EndOfStream"
            outcomes.append((last, len(early), num_told))
    assert len(outcomes) > MIN_LINES
    # Later deaths leave no less behind. Among them: nothing yet; whole but told to nobody; told to reader 0 alone.
    assert outcomes == sorted(outcomes)
    assert {(2, 0, 0), (3, 0, 0), (3, 1, 0), (3, 1, 1), (3, 1, 2)} == set(outcomes)


@pytest.mark.slow
def test_a_writer_stopped_in_front_of_any_line_goes_on(forker: Forker) -> None:
    num_struck = 0
    for strike_at in range(1, 1000):
        with ExitStack() as stack:
            scene = Scene(forker, 3, stack)
            writer, blocked, readers = strike_writer(scene, strike_at, signal.SIGSTOP)
            if not os.WIFSTOPPED(writer.wait()):
                break
            num_struck += 1
            early = taken(readers[0])
            assert early in ([], RECORDS[2:])
            writer.send(signal.SIGCONT)
            assert [*early, *taken_to_the_end(readers[0])] == RECORDS[2:]
            assert taken_to_the_end(readers[1]) == RECORDS[2:]
            *records, end = blocked.lines_left()
            assert (reported(records), end) == (RECORDS[2:], "!EndOfStream")
            assert writer.wait() == 0
    assert num_struck > MIN_LINES


def strike_reader(scene: Scene, strike_at: int, signal_number: int) -> tuple[ForkedEnd, BoardWriter, BoardReader]:
    """(reader 0 in a process, writer, reader 1): reader 0's round runs; records 1 and 2 were there for both readers."""
    writer, survivor = scene.writer(), scene.reader(1)
    victim = scene.fork("receive_round", strike_at=strike_at, signal_number=signal_number)
    for record in RECORDS[:2]:
        writer.publish_nowait(record)
    victim.go()
    return victim, writer, survivor


def check_slow(writer: BoardWriter, num_taken: int) -> int:
    """Publish record 3 as often as reader 0, at rest after `num_taken` records, has given slots back.

    Then reader 0 is the slow one. Returns how often.
    """
    num_credits = writer.num_credits(0)
    assert num_taken <= num_credits <= num_taken + 1
    for number in range(num_credits):
        assert writer.publish_nowait(RECORDS[2]) == 3 + number
    with pytest.raises(SlowPeer) as caught:
        writer.publish(b"", 0.0, lambda _: "at rest")
    assert (caught.value.rank, caught.value.behind) == (0, 2)
    return num_credits


@pytest.mark.slow
def test_a_reader_killed_in_front_of_any_line_harms_nobody(forker: Forker) -> None:
    outcomes = []
    for strike_at in range(1, 1000):
        with ExitStack() as stack:
            scene = Scene(forker, 2, stack)
            victim, writer, survivor = strike_reader(scene, strike_at, signal.SIGKILL)
            status = victim.wait()
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            records = reported(victim.lines_left())
            assert records == RECORDS[: len(records)]
            assert taken(survivor) == RECORDS[:2]
            num_more = check_slow(writer, len(records))
            writer.close_stream()
            assert taken_to_the_end(survivor) == [RECORDS[2]] * num_more
            outcomes.append((len(records), num_more))
    assert len(outcomes) > MIN_LINES
    assert outcomes == sorted(outcomes)
    assert {(0, 0), (0, 1), (1, 1), (1, 2)} == set(outcomes)


@pytest.mark.slow
def test_a_reader_stopped_in_front_of_any_line_goes_on(forker: Forker) -> None:
    num_struck = 0
    for strike_at in range(1, 1000):
        with ExitStack() as stack:
            scene = Scene(forker, 2, stack)
            victim, writer, survivor = strike_reader(scene, strike_at, signal.SIGSTOP)
            if not os.WIFSTOPPED(victim.wait()):
                break
            num_struck += 1
            assert taken(survivor) == RECORDS[:2]
            num_more = check_slow(writer, writer.num_credits(0))
            victim.send(signal.SIGCONT)
            expected = [*RECORDS[:2], *[RECORDS[2]] * num_more, b"last"]
            assert taken(survivor) == expected[2:-1]
            writer.publish(b"last", 60.0, lambda _: "reading")
            writer.close_stream()
            *records, end = victim.lines_left()
            assert (reported(records), end) == (expected, "!EndOfStream")
            assert taken_to_the_end(survivor) == [b"last"]
            assert victim.wait() == 0
    assert num_struck > MIN_LINES
