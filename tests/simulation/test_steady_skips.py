"""A simulation that takes steady steps at once tells the same, number for number, as one that takes each singly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bench.llama_shape import LLAMA_3_1_8B
from callboard.scheduling.limits import SchedulerLimits
from callboard.simulation import (
    ControlTimes,
    History,
    Roofline,
    StepLoad,
    StepTimes,
    TraceRequest,
    find_device,
    report_of,
)
from callboard.simulation.run import Simulation
from callboard.simulation.trace_files import read_trace

MakeLimits = Callable[..., SchedulerLimits]
US = 1000
TRACES = Path(__file__).parent.parent / "data" / "traces"


class UnevenSteps:
    """Now shorter than the time that a plan takes, now longer: results are there before the scheduler is free."""

    def __init__(self, period: int) -> None:
        self._period = period

    def step_ns(self, load: StepLoad) -> int:
        return 5 * US + 400 * US * (load.context_tokens % self._period) + 3 * load.prefill_pairs


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    """Some at once, some far apart; some share a prefix, a few have a deadline."""
    at_ns, trace = 0, []
    for _ in range(draw(st.integers(1, 15))):
        at_ns += draw(st.sampled_from([0, 7 * US, 3001 * US, 20_011 * US, 400_000 * US]))
        trace.append(
            TraceRequest(
                at_ns,
                draw(st.integers(1, 90)),
                draw(st.sampled_from([1, 2, 5, 17, 60, 200])),
                tenant=draw(st.sampled_from(["a", "b"])),
                priority=draw(st.integers(0, 1)),
                deadline_ns=draw(st.sampled_from([None] * 9 + [9_000 * US])),
                prefix_ids=(1, 2),
                prefix_block_tokens=draw(st.sampled_from([16, 20])),
            )
        )
    return trace


def facts(history: History) -> list[object]:
    """All that a history says, as plain values."""
    gauges = history.gauges
    arrays = (gauges.time_ns, gauges.num_running, gauges.num_waiting, gauges.kv_share)
    requests = [request._replace(token_ns=np.zeros(0)) for request in history.requests]
    times = [request.token_ns.tolist() for request in history.requests]
    plain = [request._asdict() | {"token_ns": None} for request in requests]
    return [plain, times, [array.tolist() for array in arrays], history.statistics, history.busy_ns]


def assert_same(
    trace: list[TraceRequest], limits: SchedulerLimits, steps: StepTimes, control: ControlTimes
) -> tuple[int, int]:
    """Both tell the same; returns how often each of them called the scheduler's `step` with something."""
    found, num_handled = [], []
    for is_stepwise in (False, True):
        simulation = Simulation(trace, limits, steps, control, is_stepwise=is_stepwise)
        history = simulation.run()
        assert simulation.scheduler.check_integrity() == []
        found.append((facts(history), repr(report_of(history))))
        num_handled.append(simulation.num_handled)
    assert found[0] == found[1]
    return num_handled[0], num_handled[1]


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    trace=traces(),
    depth=st.integers(1, 3),
    num_blocks=st.sampled_from([30, 60, 4096]),
    caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
    period=st.sampled_from([1, 3, 7]),
    control=st.sampled_from([ControlTimes(), ControlTimes(0, 0), ControlTimes(300 * US, 500 * US, 40 * US, 90 * US)]),
)
def test_histories_are_the_same(
    trace: list[TraceRequest],
    depth: int,
    num_blocks: int,
    caching: bool,
    policy: str,
    period: int,
    control: ControlTimes,
    make_limits: MakeLimits,
) -> None:
    limits = make_limits(pipeline_depth=depth, num_blocks=num_blocks, prefix_caching=caching, policy=policy)
    assert_same(trace, limits, UnevenSteps(period), control)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("azure2023_conv_200.csv", 4.0), ("mooncake_conversation_100.jsonl", 1.3)])
def test_reports_of_real_traces_are_the_same_with_far_fewer_calls(
    name: str, least: float, make_limits: MakeLimits
) -> None:
    limits = make_limits(
        max_num_seqs=256, max_num_batched_tokens=8192, num_blocks=30_000, max_model_len=131_072, prefix_caching=True
    )
    steps = Roofline(LLAMA_3_1_8B, find_device("h100-sxm"))
    at_once, singly = assert_same(read_trace(TRACES / name), limits, steps, ControlTimes())
    assert singly > least * at_once
