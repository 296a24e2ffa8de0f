"""The end of a board whose writer died: what its readers count, hear and get, and what a sealer refuses."""

from __future__ import annotations

import select

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import EndOfStream, ProtocolViolation, StaleEpoch
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter, close_board, create_board, seal_board
from callboard.shm_queue.segment import HEADER, map_memory, memory_bytes, slot_stride

LAYOUT = BoardLayout(name="call", epoch=5, num_slots=3, slot_bytes=16, num_readers=2)


@pytest.fixture
def fds(make_board) -> dict[str, int]:
    return make_board(LAYOUT)


@pytest.fixture
def readers(fds):
    opened = (BoardReader(LAYOUT, fds, 0), BoardReader(LAYOUT, fds, 1))
    yield opened
    for reader in opened:
        reader.detach()


def is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def writer_heard_by(fds: dict[str, int], make_board, *readers: int) -> BoardWriter:
    """A writer whose other doorbells ring where nobody listens, as if it had died before them."""
    elsewhere = make_board(LAYOUT)
    deaf = {name: elsewhere[name] for name in (f"call.doorbell.{i}" for i in range(2) if i not in readers)}
    return BoardWriter(LAYOUT, {**fds, **deaf})


@pytest.mark.parametrize("heard_by", [(), (0,), (1,), (0, 1)])
def test_all_readers_get_what_was_committed_whoever_was_told(fds, readers, make_board, heard_by) -> None:
    writer = writer_heard_by(fds, make_board, *heard_by)
    for record in (b"1", b"2"):
        writer.publish_nowait(record)
    assert seal_board(LAYOUT, fds) == 2
    for reader in readers:
        assert [reader.receive(), reader.receive()] == [b"1", b"2"]
        for receive in (reader.receive, reader.receive_nowait):
            with pytest.raises(EndOfStream, match=r"the writer .*died"):
                receive()
    writer.detach()


def test_counts_and_doorbell_are_right_all_the_way(fds, readers, make_board) -> None:
    writer = writer_heard_by(fds, make_board, 0)
    writer.publish_nowait(b"1")
    writer.publish_nowait(b"2")
    first, second = readers
    assert first.receive_nowait() == b"1"
    assert [first.num_waiting(), second.num_waiting()] == [1, 0]
    seal_board(LAYOUT, fds)
    for reader, num_records in ((first, 1), (second, 2)):
        assert reader.num_waiting() == num_records + 1
        assert is_readable(reader.fileno())
        for num_left in range(num_records, 0, -1):
            reader.receive_nowait()
            assert reader.num_waiting() == num_left
        with pytest.raises(EndOfStream):
            reader.receive_nowait()
        assert reader.num_waiting() == 0
        assert not is_readable(reader.fileno())
    writer.detach()


def test_twice_is_once(fds, readers) -> None:
    writer = BoardWriter(LAYOUT, fds)
    writer.publish_nowait(b"1")
    assert seal_board(LAYOUT, fds) == 1
    assert readers[0].receive_nowait() == b"1"
    assert seal_board(LAYOUT, fds) == 1
    for reader, num_records in zip(readers, (0, 1), strict=True):
        assert reader.num_waiting() == num_records + 1
        for _ in range(num_records):
            assert reader.receive_nowait() == b"1"
        with pytest.raises(EndOfStream):
            reader.receive_nowait()
    seal_board(LAYOUT, fds)
    for reader in readers:
        assert reader.num_waiting() == 0
        with pytest.raises(EndOfStream):
            reader.receive()
        assert not is_readable(reader.fileno())
    writer.detach()


def test_a_board_on_which_nothing_was_published(fds, readers) -> None:
    assert seal_board(LAYOUT, fds) == 0
    for reader in readers:
        assert reader.num_waiting() == 1
        with pytest.raises(EndOfStream, match="died"):
            reader.receive()


@pytest.mark.parametrize("heard_by", [(), (0,), (0, 1)])
def test_a_closed_board_ends_where_its_writer_closed_it(fds, readers, make_board, heard_by) -> None:
    writer = writer_heard_by(fds, make_board, *heard_by)
    for record in (b"1", b"2", b"3"):
        writer.publish_nowait(record)
    writer.close_stream()
    if heard_by:
        # This one has the end before the board is sealed.
        assert [readers[0].receive() for _ in range(3)] == [b"1", b"2", b"3"]
        with pytest.raises(EndOfStream, match="closed"):
            readers[0].receive()
    assert seal_board(LAYOUT, fds) == 3
    for reader in readers:
        if reader.num_waiting():
            assert reader.num_waiting() == 4
            assert [reader.receive() for _ in range(3)] == [b"1", b"2", b"3"]
        with pytest.raises(EndOfStream):
            reader.receive()
    writer.detach()


def test_a_reader_may_attach_afterwards(fds) -> None:
    writer = BoardWriter(LAYOUT, fds)
    writer.publish_nowait(b"1")
    seal_board(LAYOUT, fds)
    reader = BoardReader(LAYOUT, fds, 1)
    assert reader.receive() == b"1"
    with pytest.raises(EndOfStream):
        reader.receive()
    reader.detach()
    writer.detach()


def test_slots_that_were_used_again(fds, readers) -> None:
    writer = BoardWriter(LAYOUT, fds)
    for number in range(11):
        writer.publish_nowait(b"%d" % number)
        for reader in readers[: 2 if number < 8 else 1]:
            assert reader.receive() == b"%d" % number
    assert seal_board(LAYOUT, fds) == 11
    assert [readers[1].receive() for _ in range(3)] == [b"8", b"9", b"10"]
    for reader in readers:
        with pytest.raises(EndOfStream):
            reader.receive()
    writer.detach()


def test_an_end_that_cannot_be_is_refused_again_and_again(fds, readers) -> None:
    """A board sealed by somebody who believed in a header that no writer leaves: sequence 4,001, five slots on."""
    memory = map_memory("test", fds["call.memory"], memory_bytes(LAYOUT), is_writable=True)
    HEADER.pack_into(memory, slot_stride(LAYOUT), LAYOUT.epoch, 4001, 1, 0)
    assert seal_board(LAYOUT, fds) == 4001
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match="sealed to end at 4002 where 1 is next"):
            readers[0].receive()
    memory.close()


WORD = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1))


@given(headers=st.lists(st.tuples(st.one_of(st.just(5), WORD), WORD, WORD, WORD), min_size=4, max_size=4))
def test_whatever_lies_in_the_slots_the_readers_come_to_an_end(headers: list[tuple[int, int, int, int]]) -> None:
    fds = create_board(LAYOUT)
    memory = map_memory("test", fds["call.memory"], memory_bytes(LAYOUT), is_writable=True)
    for slot, header in enumerate(headers):
        HEADER.pack_into(memory, slot * slot_stride(LAYOUT), *header)
    seal_board(LAYOUT, fds)
    reader = BoardReader(LAYOUT, fds, 0)
    with pytest.raises((EndOfStream, ProtocolViolation, StaleEpoch)):
        for _ in range(LAYOUT.num_slots + 1):
            reader.receive_nowait()
    reader.detach()
    memory.close()
    close_board(fds)


def test_what_does_not_fit_is_refused(fds) -> None:
    for missing in ("call.memory", "call.doorbell.1"):
        with pytest.raises(ProtocolViolation, match=f"{missing}' is missing"):
            seal_board(LAYOUT, {name: fd for name, fd in fds.items() if name != missing})
    with pytest.raises(ProtocolViolation, match="the layout says"):
        seal_board(BoardLayout("call", 5, 2, 16, 2), fds)
    assert not is_readable(fds["call.doorbell.0"])
