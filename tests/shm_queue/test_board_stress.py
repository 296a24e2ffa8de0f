"""Many records of random size and content; each carries its number and a checksum that its readers verify."""

from __future__ import annotations

import random
import threading
import zlib

import pytest

from callboard.errors import EndOfStream
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter

MAX_BODY_BYTES = 1 << 15


def record_of(number: int, random_source: random.Random) -> bytes:
    body = random_source.randbytes(random_source.choice((0, 1, 63, 64, 1000, MAX_BODY_BYTES)))
    return number.to_bytes(8, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def publish_all(writer: BoardWriter, num_records: int) -> None:
    random_source = random.Random(3)
    for number in range(num_records):
        writer.publish(record_of(number, random_source), 60.0, lambda reader: f"reader {reader}")
    writer.close_stream()


def verify(record: bytes, number: int) -> None:
    assert int.from_bytes(record[:8], "little") == number
    assert int.from_bytes(record[8:12], "little") == zlib.crc32(record[12:])


def run_processes(make_board, start_child, num_slots: int, num_records: int) -> None:
    layout = BoardLayout("call", 1, num_slots, MAX_BODY_BYTES + 12, 2)
    fds = make_board(layout)
    children = [start_child("read", layout, fds, reader) for reader in range(2)]
    writer = BoardWriter(layout, fds)
    publish_all(writer, num_records)
    for child in children:
        for number in range(num_records):
            verify(*child.received(1), number)
        assert child.outcome() == "EndOfStream"
    writer.detach()


def run_thread(make_board, num_slots: int, num_records: int) -> None:
    layout = BoardLayout("call", 1, num_slots, MAX_BODY_BYTES + 12, 1)
    fds = make_board(layout)
    writer, reader = BoardWriter(layout, fds), BoardReader(layout, fds, 0)
    publishing = threading.Thread(target=publish_all, args=(writer, num_records))
    publishing.start()
    for number in range(num_records):
        verify(reader.receive(), number)
    with pytest.raises(EndOfStream):
        reader.receive()
    publishing.join()
    assert writer.num_credits(0) == num_slots
    writer.detach()
    reader.detach()


@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [1, 4])
def test_checksums_hold_between_processes(make_board, start_child, num_slots: int) -> None:
    run_processes(make_board, start_child, num_slots, 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [1, 4])
def test_checksums_hold_between_threads(make_board, num_slots: int) -> None:
    run_thread(make_board, num_slots, 5_000)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [1, 2, 3, 8])
def test_checksums_hold_for_long(make_board, start_child, num_slots: int) -> None:
    run_processes(make_board, start_child, num_slots, 40_000)
    run_thread(make_board, num_slots, 400_000)
