"""Many mixed requests through an engine with a null device: right answers, no leak, and, in the long run, no growth."""

from __future__ import annotations

import pytest

from callboard.bench.process_samples import ProcessSample, growth_bytes_per_s
from callboard.bench.soak import MAX_GROWTH_BYTES_PER_HOUR, run_soak


def samples(*memory_bytes: int) -> list[ProcessSample]:
    return [ProcessSample(10.0 * i, i, memory, 10, 3) for i, memory in enumerate(memory_bytes)]


def test_growth_is_the_slope_and_one_step_is_none() -> None:
    assert growth_bytes_per_s(samples(100, 150, 200, 250)) == 5.0
    assert growth_bytes_per_s(samples(100, 100, 100, 100, 100, 100, 4100, 4100)) == 0.0
    assert growth_bytes_per_s(samples(100)) == 0.0


@pytest.mark.nightly
def test_a_thousand_requests_get_the_answers_that_they_must_get() -> None:
    report = run_soak(1000, num_rounds=2)
    assert report.faults == []
    assert report.num_aborted > 20
    assert [len(of_process) for of_process in report.samples.values()] == [2, 2, 2]


@pytest.mark.nightly
def test_two_hundred_thousand_requests_leave_no_memory_descriptor_thread_or_block_behind() -> None:
    report = run_soak(200_000)
    print("\n".join(report.lines()))
    assert report.faults == []
    assert report.unsteady() == []
    for process in report.samples:
        assert report.growth_bytes_per_hour(process) < MAX_GROWTH_BYTES_PER_HOUR, process
