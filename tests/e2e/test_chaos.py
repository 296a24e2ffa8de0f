"""Actors are killed and stopped at random under load: nothing is lost, doubled, missing or different."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bench.chaos import run_chaos


@pytest.mark.slow
def test_half_a_minute_of_chaos(tiny_llama_dir: Path) -> None:
    check(tiny_llama_dir, 30.0)


@pytest.mark.nightly
def test_ten_minutes_of_chaos(tiny_llama_dir: Path) -> None:
    check(tiny_llama_dir, 600.0)


def check(model: Path, seconds: float) -> None:
    report = run_chaos(str(model), seconds=seconds, rate=20.0, kill_every_s=5.0, stop_every_s=30.0)
    print(report.render())
    assert (report.num_lost, report.num_different, report.is_idle) == (0, 0, True), report.render()
    disturbances = sum(report.disturbances.values())
    assert disturbances >= 0.8 * (seconds / 5 + seconds / 30), "processes that were down are not killed again"
    assert report.num_same > 0.8 * report.num_requests
