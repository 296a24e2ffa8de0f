"""Real SIGKILLs at any moment, in the middle of a copy too: what can be read is whole, and no slot comes back twice."""

from __future__ import annotations

import pytest

from callboard.errors import EndOfStream, SlowPeer
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter, seal_board


@pytest.mark.parametrize("num_received", [1, 7, 50])
def test_a_writer_killed_while_it_writes_leaves_whole_records_only(make_board, start_child, num_received: int) -> None:
    layout = BoardLayout(name="call", epoch=1, num_slots=2, slot_bytes=1 << 20, num_readers=1)
    fds = make_board(layout)
    reader = BoardReader(layout, fds, 0)
    writer = start_child("write_on", layout, fds, 0)
    for value in range(num_received):
        assert reader.receive() == bytes([value]) * layout.slot_bytes
    writer.kill()
    last = seal_board(layout, fds)
    assert num_received <= last <= num_received + layout.num_slots
    for value in range(num_received, last):
        assert reader.receive() == bytes([value]) * layout.slot_bytes
    with pytest.raises(EndOfStream):
        reader.receive()
    reader.detach()


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
