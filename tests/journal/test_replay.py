"""A journal replays to the same bytes, whatever happened to its scheduler."""

from __future__ import annotations

from pathlib import Path

from callboard.tests.journal.recording import recorded_engine, replayed
from callboard.tests.scheduling.fake_worker import make_admit, make_limits


def test_a_run_with_preemptions_replays(tmp_path: Path) -> None:
    engine, scheduler = recorded_engine(make_limits(num_blocks=9, block_size=4), tmp_path / "j")
    engine.admit(*(make_admit(f"r{n}", [n] * 5, max_tokens=9) for n in range(1, 5)))
    engine.run()
    assert scheduler.statistics().num_preemptions > 0
    scheduler.writer.close()
    replay = replayed(tmp_path / "j")
    assert (replay.difference, replay.ending) == (None, "")
    assert replay.num_steps == len(scheduler.plans) > 9
