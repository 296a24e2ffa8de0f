"""Real SIGKILLs: what was published whole can be read, and nobody hangs on the dead."""

from __future__ import annotations

import pytest

from callboard.errors import SlowPeer, WouldBlock
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter

LAYOUT = BoardLayout(name="call", epoch=1, num_slots=3, slot_bytes=4096, num_readers=2)


def test_what_a_killed_writer_published_can_be_read(make_board, start_child) -> None:
    fds = make_board(LAYOUT)
    writer = start_child("write_some", LAYOUT, fds, 3)
    assert writer.outcome() == "published"
    writer.kill()
    for index in range(2):
        reader = BoardReader(LAYOUT, fds, index)
        assert [reader.receive() for _ in range(3)] == [bytes([value]) * 4096 for value in range(3)]
        with pytest.raises(WouldBlock):
            reader.receive_nowait()
        reader.detach()


@pytest.mark.parametrize("num_received", [1, 7, 50])
def test_a_writer_killed_while_it_writes_leaves_whole_records_only(make_board, start_child, num_received: int) -> None:
    layout = BoardLayout(name="call", epoch=1, num_slots=2, slot_bytes=1 << 20, num_readers=1)
    fds = make_board(layout)
    reader = BoardReader(layout, fds, 0)
    writer = start_child("write_on", layout, fds, 0)
    for value in range(num_received):
        assert reader.receive() == bytes([value]) * layout.slot_bytes
    writer.kill()
    num_left = 0
    while reader.num_waiting():
        assert reader.receive_nowait() == bytes([num_received + num_left]) * layout.slot_bytes
        num_left += 1
    assert num_left <= layout.num_slots
    reader.detach()


def test_a_killed_reader_is_a_slow_peer_and_harms_no_other(make_board, start_child) -> None:
    fds = make_board(LAYOUT)
    writer, survivor = BoardWriter(LAYOUT, fds), BoardReader(LAYOUT, fds, 1)
    victim = start_child("read_some", LAYOUT, fds, 2)
    for value in range(2):
        writer.publish_nowait(bytes([value]))
        assert survivor.receive_nowait() == bytes([value])
    assert victim.received(2) == [b"\0", b"\1"]
    victim.kill()
    for value in range(2, 5):
        writer.publish_nowait(bytes([value]))
    with pytest.raises(SlowPeer) as caught:
        writer.publish(b"one too many", 0.01, lambda reader: "dead" if reader == 0 else "alive")
    # The survivor has not taken these three either: both lag, and the first is named.
    assert (caught.value.rank, caught.value.behind, caught.value.phase) == (0, 3, "dead")
    assert [survivor.receive_nowait() for _ in range(3)] == [bytes([value]) for value in range(2, 5)]
    writer.close_stream()
    assert survivor.num_waiting() == 1
    survivor.detach()
    writer.detach()


def test_a_reader_killed_while_it_reads_gives_back_no_slot_twice(make_board, start_child) -> None:
    layout = BoardLayout(name="call", epoch=1, num_slots=3, slot_bytes=64, num_readers=1)
    fds = make_board(layout)
    writer = BoardWriter(layout, fds)
    victim = start_child("read", layout, fds, 0)
    for value in range(100):
        writer.publish(bytes([value]), 60.0, lambda _: "reading")
    victim.kill()
    num_published = 100
    with pytest.raises(SlowPeer):
        while True:
            writer.publish(b"x", 0.01, lambda _: "dead")
            num_published += 1
    assert num_published <= 103
    writer.detach()
