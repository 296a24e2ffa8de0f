"""Overload: what is accepted is served as fast as before, the rest is told at once. `make accept`."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bench.machine import describe_machine
from callboard.bench.overload import Workload, measure, write_model

pytestmark = [pytest.mark.accept, pytest.mark.timeout(1200)]


def test_four_times_the_capacity_for_a_minute(tmp_path: Path) -> None:
    write_model(tmp_path)
    report = measure(str(tmp_path), Workload(seconds=60))
    print(f"\n{describe_machine()}\n{report.text()}")
    for result in (report.base, report.overload):
        assert len(result.accepted) + len(result.refused) == len(result.outcomes)
        assert all(outcome.retry_after_s for outcome in result.refused)
    served_per_s = len(report.overload.accepted) / 60
    assert served_per_s >= 0.85 * report.capacity_per_s, "overload costs throughput"
    assert report.ttft_ratio <= 1.2
    assert report.overload.refusal_ms(99) < 20
