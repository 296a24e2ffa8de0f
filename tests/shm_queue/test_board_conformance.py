"""What every board must do, wherever its readers are: same thread, other thread, other process, event loop."""

from __future__ import annotations

import os
import random
from struct import pack_into

import pytest

from callboard.shm_queue import BoardLayout, BoardWriter, seal_board
from callboard.shm_queue.segment import map_memory, memory_bytes, slot_stride

LAYOUT = BoardLayout(name="call", epoch=5, num_slots=4, slot_bytes=256, num_readers=1)


def test_records_arrive_whole_and_in_order(make_board, start_reader) -> None:
    fds = make_board(LAYOUT)
    writer = BoardWriter(LAYOUT, fds)
    reader = start_reader(LAYOUT, fds, 0)
    records = [b"", b"x", bytes(range(256)), bytearray(b"second to last"), memoryview(b"last")]
    for sequence, record in enumerate(records[:4], start=1):
        assert writer.publish_nowait(record) == sequence
    assert reader.received(4) == records[:4]
    assert writer.publish_nowait(records[4]) == 5
    assert reader.received(1) == [b"last"]
    writer.detach()


def test_the_ring_is_used_again_and_again(make_board, start_reader) -> None:
    fds = make_board(LAYOUT)
    writer = BoardWriter(LAYOUT, fds)
    reader = start_reader(LAYOUT, fds, 0)
    random_source = random.Random(1)
    for _ in range(25):
        batch = [random_source.randbytes(random_source.randint(0, 256)) for _ in range(random_source.randint(1, 4))]
        for record in batch:
            writer.publish_nowait(record)
        assert reader.received(len(batch)) == batch
    writer.detach()


def test_a_slot_comes_back_when_its_record_was_taken(make_board, start_reader) -> None:
    fds = make_board(LAYOUT)
    writer = BoardWriter(LAYOUT, fds)
    assert writer.num_credits(0) == 4
    for _ in range(4):
        writer.publish_nowait(b"x")
    assert writer.num_credits(0) == 0
    start_reader(LAYOUT, fds, 0).received(4)
    assert writer.num_credits(0) == 4
    writer.detach()


def test_every_reader_gets_every_record(make_board, start_reader) -> None:
    layout = BoardLayout(name="call", epoch=1, num_slots=3, slot_bytes=8, num_readers=3)
    fds = make_board(layout)
    writer = BoardWriter(layout, fds)
    readers = [start_reader(layout, fds, index) for index in range(3)]
    for start in range(0, 12, 3):
        batch = [bytes([start + index]) for index in range(3)]
        for record in batch:
            writer.publish_nowait(record)
        for reader in readers:
            assert reader.received(3) == batch
    writer.close_stream()
    assert [reader.outcome() for reader in readers] == ["EndOfStream"] * 3
    writer.detach()


def test_the_stream_ends_after_its_last_record_even_on_a_full_board(make_board, start_reader) -> None:
    fds = make_board(LAYOUT)
    writer = BoardWriter(LAYOUT, fds)
    records = [bytes([index]) for index in range(4)]
    for record in records:
        writer.publish_nowait(record)
    writer.close_stream()
    writer.close_stream()
    writer.detach()
    reader = start_reader(LAYOUT, fds, 0)
    assert reader.received(4) == records
    assert reader.outcome() == "EndOfStream"


def test_a_sealed_board_ends_for_readers_that_wait_and_for_those_that_were_never_told(make_board, start_reader) -> None:
    layout = BoardLayout(name="call", epoch=1, num_slots=3, slot_bytes=8, num_readers=3)
    fds = make_board(layout)
    writer = BoardWriter(layout, {**fds, "call.doorbell.2": make_board(layout)["call.doorbell.2"]})
    readers = [start_reader(layout, fds, index) for index in range(3)]
    for record in (b"1", b"2"):
        writer.publish_nowait(record)
    for reader in readers[:2]:
        assert reader.received(2) == [b"1", b"2"]
    writer.detach()
    assert seal_board(layout, fds) == 2
    assert readers[2].received(2) == [b"1", b"2"]
    assert [reader.outcome() for reader in readers] == ["EndOfStream"] * 3


def test_a_record_of_another_epoch_is_refused(make_board, start_reader) -> None:
    fds = make_board(LAYOUT)
    earlier = BoardLayout(name="call", epoch=4, num_slots=4, slot_bytes=256, num_readers=1)
    writer = BoardWriter(earlier, fds)
    reader = start_reader(LAYOUT, fds, 0)
    writer.publish_nowait(b"of yesterday")
    assert reader.outcome() == "StaleEpoch"
    writer.detach()


@pytest.mark.parametrize(
    ("word", "value"),
    [(1, 1), (1, 3), (2, 257), (2, 2**64 - 1), (3, 2)],
    ids=["repeated", "gap", "too_long", "huge", "unknown_kind"],
)
def test_a_broken_header_is_refused(make_board, start_reader, word: int, value: int) -> None:
    """Records 1 and 2 are whole but for one word of the second's header: sequence, length or kind."""
    fds = make_board(LAYOUT)
    memory = map_memory("test", fds["call.memory"], memory_bytes(LAYOUT), is_writable=True)
    # The slots are filled by a writer whose doorbell nobody hears; the bell is rung once the second is broken.
    writer = BoardWriter(LAYOUT, {**make_board(LAYOUT), "call.memory": fds["call.memory"]})
    writer.publish_nowait(b"whole")
    writer.publish_nowait(b"broken")
    pack_into("<Q", memory, 2 * slot_stride(LAYOUT) + 8 * word, value)
    reader = start_reader(LAYOUT, fds, 0)
    os.eventfd_write(fds["call.doorbell.0"], 2)
    assert reader.received(1) == [b"whole"]
    assert reader.outcome() == "ProtocolViolation"
    memory.close()
    writer.detach()


def test_a_doorbell_rung_too_often_is_refused(make_board, start_reader) -> None:
    fds = make_board(LAYOUT)
    reader = start_reader(LAYOUT, fds, 0)
    os.eventfd_write(fds["call.doorbell.0"], 6)
    assert reader.outcome() == "ProtocolViolation"
