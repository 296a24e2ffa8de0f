"""A file that a journal was rotated to can be replayed without those before it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from callboard.bench.recorded_run import RecordedRun
from callboard.cli.main import app
from callboard.errors import ConfigError
from callboard.journal.frames import PREFIX, frame
from callboard.journal.reader import JournalFile
from callboard.journal.replay import Replay, runs_of
from callboard.tests.journal.random_run import RandomRun
from callboard.tests.journal.recording import opened

BOUND = 1 << 20


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordedRun, Path]:
    """A long life in a small journal."""
    stem = tmp_path_factory.mktemp("rotated") / "j"
    run = RecordedRun(5, stem, BOUND // 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("callboard.journal.writer.WRITE_BYTES", 4096)
        run.run(1_500)
    return run, stem


@pytest.mark.slow
def test_what_is_left_of_a_journal_replays_from_its_oldest_file(rotated: tuple[RecordedRun, Path]) -> None:
    run, stem = rotated
    files = opened(stem)
    assert files[0].header.number >= 2, "the first files are gone"
    for first in range(len(files)):
        replay = Replay()
        replay.run([JournalFile(file.path) for file in files[first:]])
        assert (replay.difference, replay.ending) == (None, "")
        assert replay.digest() == run.digest()
        assert replay.scheduler is not None and replay.scheduler.statistics() == run.scheduler.statistics()
        assert 0 < replay.num_steps < run.num_steps


@pytest.mark.slow
def test_the_command_replays_a_later_file_and_asks_it_what_if(rotated: tuple[RecordedRun, Path]) -> None:
    _, stem = rotated
    path = str(opened(stem)[0].path)
    result = CliRunner().invoke(app, ["replay", path, "--policy", "fcfs"])
    assert result.exit_code == 0, result.output
    assert "identical" in result.output and "policy=fcfs" in result.output
    table = {line[:22].strip(): line[22:].replace(",", "").split() for line in result.output.splitlines()}
    recorded, modelled, _ = map(int, table["finished"])
    assert 0 < recorded <= modelled
    for name in ("preemptions", "generated tokens"):  # counted from where the file begins
        recorded, modelled, _ = map(int, table[name])
        assert modelled / 2 < recorded < modelled * 2


@pytest.mark.slow
def test_every_file_replays_alone_whatever_happens(tmp_path: Path) -> None:
    num_files = 0
    for seed in range(12):
        run = RandomRun(seed, tmp_path / str(seed), max_bytes=1 << 24)
        for _ in range(40):
            run.act()
            if run.random.random() < 0.3:
                run.scheduler.writer.flush()
                run.scheduler.writer._rotate()
        run.finish()
        num_plans = 0
        for file in opened(tmp_path / str(seed)):
            replay = Replay()
            replay.run([file])
            assert (replay.difference, replay.ending) == (None, "")
            num_plans, num_files = num_plans + replay.num_steps, num_files + 1
        assert num_plans == len(run.scheduler.plans)
    assert num_files > 60


@pytest.mark.slow
def test_a_scheduler_that_comes_after_a_kill_begins_a_new_life_in_a_new_file(
    rotated: tuple[RecordedRun, Path],
) -> None:
    _, stem = rotated
    before = opened(stem)
    killed = before[-1].path.read_bytes()[:-3]
    before[-1].path.write_bytes(killed)
    again = RecordedRun(6, stem, BOUND)
    again.run(200)
    lives = runs_of(opened(stem))
    assert [life[0].header.number for life in lives] == [before[0].header.number, 0]
    assert lives[1][0].path not in {file.path for file in before}
    replays = [Replay(), Replay()]
    for replay, life in zip(replays, lives, strict=True):
        replay.run(life)
        assert replay.difference is None
    assert "cut off" in replays[0].ending and not replays[1].ending
    assert replays[1].digest() == again.digest() and replays[1].num_steps == again.num_steps


def test_a_damaged_snapshot_and_one_of_another_version_are_told(tmp_path: Path) -> None:
    run = RandomRun(1, tmp_path / "j")
    for _ in range(10):
        run.act()
    run.scheduler.writer.flush()
    run.scheduler.writer._rotate()
    run.finish()
    file = opened(tmp_path / "j")[-1]
    assert file.snapshot is not None
    for state, message in ((b"\7\0", "version 7"), (file.snapshot.state[:-1], "cannot be read")):
        snapshot = msgspec.structs.replace(file.snapshot, state=state)
        file.path.write_bytes(PREFIX + frame(file.header) + frame(snapshot))
        with pytest.raises(ConfigError, match=message):
            Replay().run([JournalFile(file.path)])
