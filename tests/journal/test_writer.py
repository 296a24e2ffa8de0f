"""What is written when, within which bound, and what a file system that refuses does."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from callboard.actors.scheduler_journal import SchedulerJournal
from callboard.errors import ProtocolViolation
from callboard.journal.files import FILES, RotatingFiles, files_of
from callboard.journal.reader import JournalFile
from callboard.journal.writer import JournalWriter
from callboard.mailbox.messages.admission import Stop
from callboard.tests.actors.test_scheduler_actor import Rig
from callboard.tests.journal.recording import replayed
from callboard.tests.scheduling.fake_worker import make_admit, make_limits


def sizes(stem: Path) -> list[int]:
    return [path.stat().st_size for _, path in sorted(files_of(stem).items())]


def new_writer(stem: Path, max_bytes: int = 1 << 20, take_snapshot: Callable[[], bytes] | None = None) -> JournalWriter:
    return JournalWriter(stem, max_bytes, make_limits(), 0, take_snapshot)


def test_all_files_together_stay_within_the_bound_and_the_oldest_go(tmp_path: Path) -> None:
    stem, max_bytes = tmp_path / "j", 1 << 17
    writer = new_writer(stem, max_bytes)
    for number in range(3000):
        writer.take(number, [Stop("r" * 80, 0, 1, number)])
        if number % 50 == 49:
            writer.flush()
            assert sum(sizes(stem)) <= max_bytes
    writer.close()
    assert writer.failure is None
    numbers = sorted(files_of(stem))
    assert 1 not in numbers and numbers == list(range(numbers[0], numbers[-1] + 1))
    assert FILES - 2 <= len(numbers) <= FILES + 1
    assert sum(sizes(stem)) > max_bytes * 3 // 4
    headers = [JournalFile(path).header for _, path in sorted(files_of(stem).items())]
    assert len({header.run for header in headers}) == 1
    assert [header.number for header in headers] == [number - 1 for number in numbers]


def test_files_of_earlier_lives_count_and_go_first_and_others_are_left_alone(tmp_path: Path) -> None:
    stem = tmp_path / "j"
    for name in ("j.000003", "j.000007"):
        (tmp_path / name).write_bytes(bytes(400_000))
    (tmp_path / "j.txt").write_bytes(bytes(2_000_000))
    writer = new_writer(stem)
    assert writer.path == tmp_path / "j.000008"
    writer.take(1, [Stop("r" * 300_000, 0, 1, 0)])
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j.000007", "j.000008", "j.txt"]


def test_a_rotated_file_begins_with_the_scheduler_as_it_was(tmp_path: Path) -> None:
    states = iter([b"first", b"second"])
    writer = new_writer(tmp_path / "j", 1 << 20, lambda: next(states))
    for _ in range(2):
        writer.take(1, [Stop("r" * (1 << 17), 0, 1, 0)])
        writer.flush()
    writer.close()
    files = [JournalFile(path) for _, path in sorted(files_of(tmp_path / "j").items())]
    assert [file.snapshot and file.snapshot.state for file in files] == [None, b"first", b"second"]


def test_a_record_larger_than_everything_stops_the_journal(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "j")
    writer.take(1, [Stop("r" * (1 << 21), 0, 1, 0)])
    writer.flush()
    assert writer.failure is not None and "more than max_bytes" in writer.failure
    writer.take(2, [])
    writer.flush()
    assert not writer.has_unwritten
    writer.close()


@pytest.mark.parametrize("failure", ["raises", "is short"])
def test_a_full_disk_stops_the_journal_and_what_is_there_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    writer = new_writer(tmp_path / "j")
    writer.take(1, [])
    writer.flush()
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if failure == "raises":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:-3])

    monkeypatch.setattr("callboard.journal.files.os.write", write)
    writer.take(2, [])
    writer.flush()
    assert writer.failure is not None and ("No space" in writer.failure or "disk is full" in writer.failure)
    monkeypatch.undo()
    writer.close()
    file = JournalFile(tmp_path / "j.000001")
    assert [record.num_events for record in file if hasattr(record, "num_events")] == [[0]]
    assert bool(file.ending) == (failure == "is short")


def test_a_folder_that_is_not_there_is_a_failure_and_no_exception(tmp_path: Path) -> None:
    assert new_writer(tmp_path / "no" / "j").failure == "No such file or directory"


def test_two_writers_never_take_the_same_file(tmp_path: Path) -> None:
    files = RotatingFiles(tmp_path / "j", 1 << 20)
    files.begin(b"")
    (tmp_path / "j.000002").write_bytes(b"somebody else's")
    with pytest.raises(FileExistsError):
        files.begin(b"")
    assert (tmp_path / "j.000002").read_bytes() == b"somebody else's"


# Beside the actor


async def test_the_actor_journals_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.scheduler_journal.FLUSH_AFTER_S", 0.0)
    rig = Rig(pipeline_depth=2)
    writer = JournalWriter(tmp_path / "j", 1 << 20, rig.limits, 0)
    rig.actor._journal = SchedulerJournal(writer)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True, max_tokens=6))
    rig.attach()
    while rig.calls.plans:
        await rig.step()
    while writer.has_unwritten:  # the timer writes, with nothing else going on
        await asyncio.sleep(0)
    assert replayed(tmp_path / "j").num_steps == 6
    rig.actor.close()
    replay = replayed(tmp_path / "j")
    assert replay.difference is None and replay.num_steps == 6


async def test_a_request_goes_on_when_the_journal_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("callboard.journal.writer.BATCH_CALLS", 4)
    monkeypatch.setattr("callboard.journal.writer.WRITE_BYTES", 1)
    rig = Rig(pipeline_depth=2)
    rig.actor._journal = SchedulerJournal(JournalWriter(tmp_path / "j", 1 << 20, rig.limits, 0))

    def write(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("callboard.journal.files.os.write", write)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True, max_tokens=20))
    rig.attach()
    while rig.calls.plans:
        await rig.step()
    received = []
    while len(received) < 20:
        message = await rig.to_tokenizer.receive()
        received += message.token_ids[0]
    log = capsys.readouterr().err
    assert log.count("journal.stopped") == 1 and "reason='No space left on device'" in log
    rig.actor.close()


async def test_what_killed_the_scheduler_is_in_its_journal(tmp_path: Path) -> None:
    rig = Rig(pipeline_depth=2)
    rig.actor._journal = SchedulerJournal(JournalWriter(tmp_path / "j", 1 << 20, rig.limits, 0))
    rig.admit(make_admit("r", [1, 2], ignore_eos=True))
    calls, results = rig.attach()
    result = rig.worker.work(calls.plans.popleft(), 0)
    results.publish(msgspec.structs.replace(result, step=5))
    with pytest.raises(ProtocolViolation):
        await rig.faults.run(asyncio.sleep(600))
    rig.actor.close()
    difference = replayed(tmp_path / "j").difference
    assert difference is not None and "step 5" in difference.reason
