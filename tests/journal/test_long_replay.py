"""Many recorded steps replay to the same hash."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from callboard.tests.journal.light_run import LightRun
from callboard.tests.journal.recording import replayed


def check_run(num_steps: int, stem: Path) -> None:
    run = LightRun(num_steps, stem)
    begin_s = time.perf_counter()
    run.run(num_steps)
    recorded_s = time.perf_counter() - begin_s
    statistics = run.scheduler.statistics()
    assert statistics.num_preemptions > num_steps / 1000
    assert min(statistics.num_failed_steps, statistics.num_orphans_ended) >= num_steps // 10_000
    assert statistics.num_draft_tokens > statistics.num_accepted_tokens > num_steps / 1000
    replay = replayed(stem)
    assert replay.difference is None and not replay.ending
    assert replay.num_steps == run.num_steps >= num_steps
    assert replay.digest() == run.digest()
    assert replay.scheduler is not None and replay.scheduler.statistics() == statistics
    num_bytes = sum(path.stat().st_size for path in stem.parent.iterdir())
    print(
        f"\n{run.num_steps:,} steps, {statistics.num_finished:,} requests, {statistics.num_preemptions:,} preemptions, "
        f"{statistics.num_accepted_tokens:,} of {statistics.num_draft_tokens:,} drafts accepted: "
        f"recorded in {recorded_s:,.0f} s, replayed in {time.perf_counter() - begin_s - recorded_s:,.0f} s, "
        f"{num_bytes / run.num_steps:.0f} bytes a step, hash {run.digest()}"
    )


@pytest.mark.slow
def test_a_thousand_steps_replay_to_the_same_hash(tmp_path: Path) -> None:
    check_run(1_000, tmp_path / "j")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_million_steps_replay_to_the_same_hash(tmp_path: Path) -> None:
    check_run(1_000_000, tmp_path / "j")
