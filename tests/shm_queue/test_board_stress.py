"""Random records with checksums: as fast as it goes; and among processes that are stopped, continued and killed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from callboard.errors import EndOfStream
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter, close_board, create_board, seal_board
from callboard.tests.shm_queue.board_children import ForkedEnd, Forker
from callboard.tests.shm_queue.board_forker import MAX_BODY_BYTES, Fork, record_of, verify

SLOT_BYTES = MAX_BODY_BYTES + 12


def publish_all(writer: BoardWriter, num_records: int) -> None:
    for number in range(1, num_records + 1):
        writer.publish(record_of(number, 3), 60.0, lambda reader: f"reader {reader}")
    writer.close_stream()


def run_processes(make_board, start_child, num_slots: int, num_records: int) -> None:
    layout = BoardLayout("call", 1, num_slots, SLOT_BYTES, 2)
    fds = make_board(layout)
    children = [start_child("read", layout, fds, reader) for reader in range(2)]
    writer = BoardWriter(layout, fds)
    publish_all(writer, num_records)
    for child in children:
        for number in range(1, num_records + 1):
            verify(*child.received(1), number)
        assert child.outcome() == "EndOfStream"
    writer.detach()


def run_thread(make_board, num_slots: int, num_records: int) -> None:
    layout = BoardLayout("call", 1, num_slots, SLOT_BYTES, 1)
    fds = make_board(layout)
    writer, reader = BoardWriter(layout, fds), BoardReader(layout, fds, 0)
    publishing = threading.Thread(target=publish_all, args=(writer, num_records))
    publishing.start()
    for number in range(1, num_records + 1):
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


@pytest.fixture
def forker() -> Iterator[Forker]:
    forker = Forker()
    yield forker
    forker.close()


def digest_of(num_records: int, seed: int) -> int:
    digest = 0
    for number in range(1, num_records + 1):
        digest = zlib.crc32(record_of(number, seed), digest)
    return digest


def trouble(random_source: random.Random, writer: ForkedEnd, readers: list[ForkedEnd]) -> list[ForkedEnd]:
    """Stop and continue ends at random, sometimes kill a reader, at last kill the writer. Returns living readers."""
    living = list(readers)
    for _ in range(random_source.randint(0, 12)):
        time.sleep(random_source.uniform(0, 0.01))
        victim = random_source.choice([writer, *living])
        victim.send(signal.SIGSTOP)
        time.sleep(random_source.uniform(0, 0.01))
        victim.send(signal.SIGCONT)
    if random_source.random() < 0.2:
        # From now on the writer fills the board and then waits.
        victim = living.pop(random_source.randrange(len(living)))
        victim.close()
        time.sleep(random_source.uniform(0, 0.01))
    if random_source.random() < 0.3:
        # The writer dies while the readers are behind.
        for reader in living:
            reader.send(signal.SIGSTOP)
    writer.send(signal.SIGKILL)
    while writer.is_running:
        assert os.WIFSTOPPED(status := writer.wait()) or os.WTERMSIG(status) == signal.SIGKILL
    return living


def run_life(forker: Forker, seed: int) -> int:
    """One board under trouble, to its seal; every living reader has every record. Returns how many there were."""
    random_source = random.Random(seed)
    layout = BoardLayout("call", seed, random_source.randint(1, 5), SLOT_BYTES, random_source.randint(1, 3))
    with ExitStack() as stack:
        fds = create_board(layout)
        stack.callback(close_board, fds)
        roles = [("write_on", 0), *(("digest_all", reader) for reader in range(layout.num_readers))]
        children = []
        for role, reader in roles:
            children.append(forker.start(Fork(role, layout, [], reader, seed), fds))
            stack.callback(children[-1].close)
        living = trouble(random_source, children[0], children[1:])
        num_records = seal_board(layout, fds)
        expected = f"{num_records} {digest_of(num_records, seed)} EndOfStream"
        for reader in living:
            reader.send(signal.SIGCONT)
            assert reader.line() == expected, f"seed {seed}"
    return num_records


def run_lives(forker: Forker, duration_s: float) -> None:
    end_s = time.monotonic() + duration_s
    num_lives = num_records = 0
    while time.monotonic() < end_s:
        num_records += run_life(forker, num_lives)
        num_lives += 1
    print(f"\n{num_lives:,} boards, {num_records:,} records", end="")
    assert num_records > 0


@pytest.mark.slow
def test_every_reader_has_every_record_of_a_board_in_trouble(forker: Forker) -> None:
    run_lives(forker, 2.0)


@pytest.mark.nightly
@pytest.mark.slow
def test_every_reader_has_every_record_of_boards_in_trouble_for_long(forker: Forker) -> None:
    run_lives(forker, 420.0)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("num_slots", [1, 2, 3, 8])
def test_checksums_hold_for_long(make_board, start_child, num_slots: int) -> None:
    run_processes(make_board, start_child, num_slots, 20_000)
    run_thread(make_board, num_slots, 200_000)
