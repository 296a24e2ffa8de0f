"""Many recorded steps replay to the same hash."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bench.journal_replay import ReplayedRun, record_and_replay, report


def check_run(num_steps: int, folder: Path) -> ReplayedRun:
    run = record_and_replay(num_steps, num_steps, folder)
    print("\n".join(["", *report([run])]))
    assert run.hash == run.replayed_hash == run.last_file_hash and run.is_identical, run.difference
    assert run.num_replayed == run.num_steps >= num_steps
    statistics = run.statistics
    assert statistics.num_preemptions > num_steps / 1000
    assert min(statistics.num_failed_steps, statistics.num_orphans_ended) >= num_steps // 10_000
    assert statistics.num_draft_tokens > statistics.num_accepted_tokens > num_steps / 1000
    assert {"Admit", "Abort", "Stop", "Drafts", "StepResult", "WorkerAttached"} <= run.num_events.keys()
    return run


@pytest.mark.slow
def test_a_thousand_steps_replay_to_the_same_hash(tmp_path: Path) -> None:
    check_run(1_000, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_million_steps_replay_to_the_same_hash(tmp_path: Path) -> None:
    assert check_run(1_000_000, tmp_path).num_files > 1
