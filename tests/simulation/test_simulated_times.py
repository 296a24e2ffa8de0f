"""Times of tiny runs, worked out by hand, and the pipeline's depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from callboard.scheduling.limits import SchedulerLimits
from callboard.simulation import ControlTimes, StepTimes, TraceRequest, report_of, simulate

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "golden.json").read_text())
MakeLimits = Callable[..., SchedulerLimits]
MakeSteps = Callable[[int], StepTimes]
MS = 1_000_000
CONTROL = ControlTimes(schedule_ns=50_000, prepare_ns=100_000)


@pytest.mark.parametrize(("depth", "golden"), [(1, "1"), (2, "2"), (3, "2")])
def test_step_wall_ms_depth(make_limits: MakeLimits, constant_steps: MakeSteps, depth: int, golden: str) -> None:
    """Schedule 0.05 ms and prepare 0.1 ms show at depth 1 and hide behind 15 ms of the device at 2 and 3."""
    trace = [TraceRequest(0, 10, 20)]
    (request,) = simulate(trace, make_limits(pipeline_depth=depth), constant_steps(15 * MS), CONTROL).requests
    expected = GOLDEN["step_wall_ms_depth"]["value"][golden]
    assert (np.diff(request.token_ns) / MS).tolist() == pytest.approx([expected] * 19, abs=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_single_request(make_limits: MakeLimits, affine_steps: StepTimes, depth: int) -> None:
    """100 prompt tokens under a budget of 64: chunks of 64 and 36, then decodes.

    Steps take 1.64, 1.36, 1.01 and 1.01 ms. At depth 1 each has 0.15 ms before it, at depth 2 and 3 only the first.
    """
    trace = [TraceRequest(7 * MS, 100, 3)]
    (request,) = simulate(trace, make_limits(pipeline_depth=depth), affine_steps, CONTROL).requests
    before = 0.15 if depth == 1 else 0.0
    first = 7 + 0.15 + 1.64 + before + 1.36
    expected = [first, first + before + 1.01, first + 2 * (before + 1.01)]
    assert (request.token_ns / MS).tolist() == pytest.approx(expected, abs=1e-9)


def test_a_request_waits_for_the_step_under_way(make_limits: MakeLimits, constant_steps: MakeSteps) -> None:
    """Depth 1, only the device takes time: the second comes at 3 ms of a step of 10, and gets its token at 20."""
    trace = [TraceRequest(0, 4, 3), TraceRequest(3 * MS, 4, 1)]
    free = ControlTimes(schedule_ns=0, prepare_ns=0)
    one, two = simulate(trace, make_limits(pipeline_depth=1), constant_steps(10 * MS), free).requests
    assert one.token_ns.tolist() == [10 * MS, 20 * MS, 30 * MS]
    assert two.token_ns.tolist() == [20 * MS]


def test_ways_there_and_back_are_added(make_limits: MakeLimits, constant_steps: MakeSteps) -> None:
    control = ControlTimes(schedule_ns=0, prepare_ns=0, report_ns=2 * MS, ingress_ns=1 * MS)
    trace = [TraceRequest(5 * MS, 4, 2)]
    (request,) = simulate(trace, make_limits(pipeline_depth=1), constant_steps(10 * MS), control).requests
    assert request.token_ns.tolist() == [18 * MS, 30 * MS]


def test_one_row_at_a_time(make_limits: MakeLimits, constant_steps: MakeSteps) -> None:
    """max_num_seqs 1: the second is admitted when the first has ended; its TTFT has the queue in it."""
    trace = [TraceRequest(0, 4, 2), TraceRequest(0, 4, 2)]
    free = ControlTimes(schedule_ns=0, prepare_ns=0)
    history = simulate(trace, make_limits(pipeline_depth=1, max_num_seqs=1), constant_steps(10 * MS), free)
    assert [request.token_ns.tolist() for request in history.requests] == [[10 * MS, 20 * MS], [30 * MS, 40 * MS]]
    report = report_of(history)
    assert report.all.ttft_ms.p50 == 20
    assert report.max_waiting == 1
    assert report.device_busy == 1


def test_shared_prefixes_are_found(make_limits: MakeLimits, affine_steps: StepTimes) -> None:
    """Two prompts of 100 tokens that share two blocks of 40: the second finds 80 // 16 * 16 = 80 tokens."""
    shared = [TraceRequest(at, 100, 1, prefix_ids=(7, 9), prefix_block_tokens=40) for at in (0, 100 * MS)]
    history = simulate(shared, make_limits(prefix_caching=True), affine_steps, CONTROL)
    assert [request.num_cached_tokens for request in history.requests] == [0, 80]
    assert report_of(history).prefix_hit_rate == 80 / 200


def test_what_the_queue_has_no_room_for(make_limits: MakeLimits, constant_steps: MakeSteps) -> None:
    trace = [TraceRequest(0, 4, 2) for _ in range(5)]
    limits = make_limits(max_num_seqs=1, max_queued_requests=2)
    report = report_of(simulate(trace, limits, constant_steps(10 * MS), CONTROL))
    assert report.reasons == {"length": 3, "refused": 2}
    assert (report.all.num_requests, report.all.num_complete) == (5, 3)


def test_a_deadline_ends_what_waits(make_limits: MakeLimits, constant_steps: MakeSteps) -> None:
    """One row, steps of 10 ms: the second waits for 30 ms but may only for 25, so nothing of it is ever computed."""
    trace = [TraceRequest(0, 4, 3), TraceRequest(0, 4, 3, deadline_ns=25 * MS)]
    limits = make_limits(pipeline_depth=1, max_num_seqs=1)
    history = simulate(trace, limits, constant_steps(10 * MS), ControlTimes(schedule_ns=0, prepare_ns=0))
    assert [request.reason for request in history.requests] == ["length", "timeout"]
    assert [len(request.token_ns) for request in history.requests] == [3, 0]
    report = report_of(history)
    assert (report.num_steps, report.num_recomputed_tokens, report.all.num_complete) == (3, 0, 1)


def test_a_deadline_ends_what_runs(make_limits: MakeLimits, constant_steps: MakeSteps) -> None:
    """Tokens at 10, 20 and 30 ms; at 25 it is over, and what is in flight then counts for nothing."""
    trace = [TraceRequest(0, 4, 9, deadline_ns=25 * MS)]
    free = ControlTimes(schedule_ns=0, prepare_ns=0)
    (request,) = simulate(trace, make_limits(), constant_steps(10 * MS), free).requests
    assert request.reason == "timeout"
    assert request.token_ns.tolist() == [10 * MS, 20 * MS]
