"""The two ends one by one: when they would wait, what they refuse, what they count."""

from __future__ import annotations

import array
import os
import select
import threading

import pytest

from callboard.errors import EndOfStream, MessageTooLarge, ProtocolViolation, SlowPeer, StaleEpoch, WouldBlock
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter, seal_board

LAYOUT = BoardLayout(name="call", epoch=1, num_slots=2, slot_bytes=16, num_readers=2)


@pytest.fixture
def ends(make_board):
    """(writer, first reader, second reader) of a new board of LAYOUT."""
    fds = make_board(LAYOUT)
    opened = (BoardWriter(LAYOUT, fds), BoardReader(LAYOUT, fds, 0), BoardReader(LAYOUT, fds, 1))
    yield opened
    for end in opened:
        end.detach()


def is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def no_phase(reader: int) -> str:
    raise AssertionError(f"the phase of reader {reader} is not asked for while nobody is slow")


def test_the_slowest_reader_decides(ends) -> None:
    writer, first, second = ends
    writer.publish_nowait(b"1")
    writer.publish_nowait(b"2")
    assert [first.receive_nowait(), first.receive_nowait()] == [b"1", b"2"]
    with pytest.raises(WouldBlock):
        writer.publish_nowait(b"3")
    assert (writer.num_credits(0), writer.num_credits(1)) == (2, 0)
    with pytest.raises(WouldBlock):
        first.receive_nowait()  # nothing was half published
    assert second.receive_nowait() == b"1"
    assert writer.publish_nowait(b"3") == 3


def test_a_record_of_just_the_slot_size_fits_and_one_more_byte_does_not(ends) -> None:
    writer, first, _ = ends
    writer.publish_nowait(bytes(16))
    assert first.receive_nowait() == bytes(16)
    with pytest.raises(MessageTooLarge) as caught:
        writer.publish_nowait(bytes(17))
    assert (caught.value.num_bytes, caught.value.max_bytes) == (17, 16)
    assert writer.publish_nowait(b"") == 2


def test_a_memoryview_counts_in_bytes(ends) -> None:
    writer, first, _ = ends
    words = array.array("i", [1, 2, 3, 4])
    writer.publish_nowait(memoryview(words))
    assert first.receive_nowait() == words.tobytes()
    with pytest.raises(MessageTooLarge):
        writer.publish_nowait(memoryview(array.array("i", [0] * 5)))


def test_publish_names_the_slow_reader_and_its_phase(ends) -> None:
    writer, first, _ = ends
    for record in (b"1", b"2"):
        assert writer.publish(record, 60.0, no_phase)
        first.receive_nowait()
    with pytest.raises(SlowPeer) as caught:
        writer.publish(b"3", 0.01, lambda reader: f"phase of {reader}")
    assert (caught.value.rank, caught.value.behind, caught.value.phase) == (1, 2, "phase of 1")
    assert caught.value.seconds >= 0.01


def test_publish_goes_on_when_the_slow_reader_does(ends) -> None:
    writer, first, second = ends
    for record in (b"1", b"2"):
        writer.publish_nowait(record)
        first.receive_nowait()
    reading = threading.Thread(target=second.receive)
    reading.start()
    assert writer.publish(b"3", 60.0, no_phase) == 3
    reading.join()
    assert first.receive() == b"3"
    assert [second.receive(), second.receive()] == [b"2", b"3"]


def test_a_closed_board_takes_nothing_more(ends) -> None:
    writer, first, _ = ends
    writer.close_stream()
    with pytest.raises(EndOfStream):
        writer.publish_nowait(b"late")
    with pytest.raises(EndOfStream):
        writer.publish(b"late", 60.0, no_phase)
    for _ in range(2):
        with pytest.raises(EndOfStream):
            first.receive_nowait()
        with pytest.raises(EndOfStream):
            first.receive()


def test_num_waiting_counts_and_takes_nothing(ends) -> None:
    writer, first, second = ends
    assert first.num_waiting() == 0
    assert not is_readable(first.fileno())
    writer.publish_nowait(b"1")
    writer.publish_nowait(b"2")
    for _ in range(2):
        assert first.num_waiting() == 2
        assert is_readable(first.fileno())
    assert first.receive_nowait() == b"1"
    assert first.num_waiting() == 1
    second.receive_nowait()
    writer.publish_nowait(b"3")
    assert first.num_waiting() == 2
    assert [first.receive_nowait(), first.receive_nowait()] == [b"2", b"3"]
    assert first.num_waiting() == 0
    writer.close_stream()
    assert first.num_waiting() == 1


def test_receive_gives_up_after_its_timeout(ends) -> None:
    _, first, _ = ends
    with pytest.raises(WouldBlock):
        first.receive(timeout_s=0.01)
    with pytest.raises(WouldBlock):
        first.receive(timeout_s=0.0)


def test_a_wake_ends_the_wait_but_hands_out_what_was_published(make_board) -> None:
    fds = make_board(LAYOUT)
    wake_fd = os.eventfd(0)
    writer, reader = BoardWriter(LAYOUT, fds), BoardReader(LAYOUT, fds, 0, wake_fd=wake_fd)
    os.eventfd_write(wake_fd, 1)
    writer.publish_nowait(b"1")
    assert reader.receive() == b"1"
    for _ in range(2):
        with pytest.raises(EndOfStream):
            reader.receive()
    assert os.eventfd_read(wake_fd) == 1  # it was looked at only
    writer.publish_nowait(b"2")
    assert reader.receive() == b"2"
    reader.detach()
    writer.detach()
    os.close(wake_fd)


def test_a_fault_stays(make_board) -> None:
    fds = make_board(LAYOUT)
    reader = BoardReader(LAYOUT, fds, 0)
    os.eventfd_write(fds["call.doorbell.0"], 1)  # rung for a slot that nobody filled
    writer = BoardWriter(BoardLayout("call", 1, 2, 16, 2), fds)
    for _ in range(2):
        with pytest.raises(Exception, match="epoch 0, the board is in epoch 1"):
            reader.receive_nowait()
    other = BoardReader(LAYOUT, fds, 1)
    os.eventfd_write(fds["call.doorbell.1"], 4)  # rung for more than there are slots
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match="rung for 4 records"):
            other.receive_nowait()
    other.detach()
    os.eventfd_write(fds["call.credit.1"], 1)
    with pytest.raises(ProtocolViolation, match="reader 1 gave back 3 slots of 2"):
        writer.num_credits(1)
    reader.detach()
    writer.detach()


def test_an_empty_slot_is_no_record_even_in_epoch_0(make_board) -> None:
    layout = BoardLayout("call", 0, 1, 8, 1)
    fds = make_board(layout)
    reader = BoardReader(layout, fds, 0)
    os.eventfd_write(fds["call.doorbell.0"], 1)
    with pytest.raises(ProtocolViolation, match="record 0 where 1 is next"):
        reader.receive_nowait()
    reader.detach()


def test_two_boards_of_one_name_do_not_meet(make_board) -> None:
    """Two engines on one machine: same names, same epoch, same sizes."""
    ours, theirs = make_board(LAYOUT), make_board(LAYOUT)
    writers = [BoardWriter(LAYOUT, fds) for fds in (ours, theirs)]
    reader, other = BoardReader(LAYOUT, ours, 0), BoardReader(LAYOUT, theirs, 0)
    writers[0].publish_nowait(b"ours")
    with pytest.raises(WouldBlock):
        other.receive_nowait()
    seal_board(LAYOUT, ours)
    writers[1].publish_nowait(b"theirs")
    assert (reader.receive(), other.receive()) == (b"ours", b"theirs")
    with pytest.raises(EndOfStream):
        reader.receive()
    with pytest.raises(WouldBlock):
        other.receive_nowait()
    for end in (*writers, reader, other):
        end.detach()


def test_a_handle_of_the_former_epoch_is_refused(make_board) -> None:
    """A reader that was told of new descriptors, but not of the new epoch."""
    fds = make_board(LAYOUT)
    writer = BoardWriter(LAYOUT, fds)
    reader = BoardReader(BoardLayout("call", 0, 2, 16, 2), fds, 0)
    writer.publish_nowait(b"new")
    for _ in range(2):
        with pytest.raises(StaleEpoch, match="epoch 1, the board is in epoch 0"):
            reader.receive_nowait()
    reader.detach()
    writer.detach()
