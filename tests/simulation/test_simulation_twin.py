"""The simulator and the scheduler in it against a slow twin of both, and what must hold under a short pool."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.scheduling.limits import SchedulerLimits
from callboard.simulation import ControlTimes, StepTimes, TraceRequest, report_of, simulate
from callboard.simulation.run import Simulation

MakeLimits = Callable[..., SchedulerLimits]
US = 1000
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class _TwinRequest:
    def __init__(self, request: TraceRequest) -> None:
        self.prompt, self.wanted = request.num_prompt_tokens, request.num_output_tokens
        self.computed = 0
        self.promised = 0
        """Tokens that steps so far yield or have yielded."""
        self.times: list[int] = []

    @property
    def is_computed(self) -> bool:
        return self.computed == self.prompt + self.promised


def twin(trace: Sequence[TraceRequest], limits: SchedulerLimits, control: ControlTimes) -> list[list[int]]:
    """When each token comes, with blocks for all: first come, first served, 1 ms a step and 10 us a token.

    A heap of (time, kind, number): 0 a step ends, 1 a request arrives. The scheduler takes in what has come while it
    was busy, and then makes as many plans as the depth allows.
    """
    requests = [_TwinRequest(request) for request in trace]
    heap = [(request.arrival_ns, 1, index) for index, request in enumerate(trace)]
    heapq.heapify(heap)
    waiting: list[_TwinRequest] = []
    running: list[_TwinRequest] = []
    steps: list[list[_TwinRequest]] = []
    num_in_flight = host_ns = device_ns = free_ns = 0
    while heap:
        now_ns = max(heap[0][0], free_ns)
        while heap and heap[0][0] <= now_ns:
            _, kind, number = heapq.heappop(heap)
            if kind == 1:
                waiting.append(requests[number])
                continue
            num_in_flight -= 1
            for request in steps[number]:
                request.times.append(now_ns)
                if len(request.times) == request.wanted:
                    running.remove(request)
        free_ns = now_ns
        while num_in_flight < limits.pipeline_depth and (rows := _twin_rows(waiting, running, limits)):
            free_ns += control.schedule_ns
            host_ns = max(host_ns, free_ns) + control.prepare_ns
            device_ns = max(host_ns, device_ns) + 1_000_000 + 10_000 * sum(count for _, count in rows)
            num_in_flight += 1
            steps.append([request for request, _ in rows if request.is_computed])
            for request in steps[-1]:
                request.promised += 1
            heapq.heappush(heap, (device_ns, 0, len(steps) - 1))
    return [request.times for request in requests]


def _twin_rows(
    waiting: list[_TwinRequest], running: list[_TwinRequest], limits: SchedulerLimits
) -> list[tuple[_TwinRequest, int]]:
    """One step: requests and how many tokens of each."""
    budget, rows = limits.max_num_batched_tokens, []
    able = [request for request in running if request.promised < request.wanted]
    for place, request in enumerate(able):
        left = request.prompt + request.promised - request.computed
        rows.append((request, min(left, max(1, budget - (len(able) - place - 1)))))
        budget -= rows[-1][1]
    while waiting and budget and len(running) < limits.max_num_seqs:
        running.append(waiting.pop(0))
        rows.append((running[-1], min(running[-1].prompt, budget)))
        budget -= rows[-1][1]
    for request, count in rows:
        request.computed += count
    return rows


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    """A few requests, some of them at once."""
    at_ns, trace = 0, []
    for _ in range(draw(st.integers(1, 12))):
        at_ns += draw(st.sampled_from([0, 0, 7 * US, 333 * US, 1501 * US, 20_011 * US]))
        trace.append(TraceRequest(at_ns, draw(st.integers(1, 150)), draw(st.integers(1, 12))))
    return trace


@RELAXED
@given(
    trace=traces(),
    depth=st.integers(1, 3),
    rows=st.integers(1, 6),
    budget=st.sampled_from([8, 33, 64]),
    control=st.sampled_from([ControlTimes(0, 0), ControlTimes(), ControlTimes(700 * US, 900 * US)]),
)
def test_every_token_comes_when_the_twin_says(
    trace: list[TraceRequest],
    depth: int,
    rows: int,
    budget: int,
    control: ControlTimes,
    make_limits: MakeLimits,
    affine_steps: StepTimes,
) -> None:
    limits = make_limits(pipeline_depth=depth, max_num_seqs=rows, max_num_batched_tokens=budget)
    history = simulate(trace, limits, affine_steps, control)
    assert [request.token_ns.tolist() for request in history.requests] == twin(trace, limits, control)


@RELAXED
@given(trace=traces(), depth=st.integers(1, 3), num_blocks=st.integers(11, 24), caching=st.booleans())
def test_nothing_is_lost_when_blocks_are_short(
    trace: list[TraceRequest],
    depth: int,
    num_blocks: int,
    caching: bool,
    make_limits: MakeLimits,
    affine_steps: StepTimes,
) -> None:
    """Each request gets as many tokens as it asked for, in order; every block comes back."""
    limits = make_limits(pipeline_depth=depth, num_blocks=num_blocks, prefix_caching=caching)
    simulation = Simulation(trace, limits, affine_steps, ControlTimes())
    history = simulation.run()
    for request, asked in zip(history.requests, trace, strict=True):
        assert len(request.token_ns) == asked.num_output_tokens
        assert request.reason == "length"
        assert request.token_ns.tolist() == sorted(request.token_ns.tolist())
        assert request.token_ns[0] > asked.arrival_ns
    assert simulation.scheduler.check_integrity() == []
    assert history.statistics.num_free_blocks == num_blocks
    assert report_of(history).num_recomputed_tokens == 0 or history.statistics.num_preemptions > 0


def test_a_run_repeats_itself(make_limits: MakeLimits, affine_steps: StepTimes) -> None:
    trace = [TraceRequest(i * 900 * US, 20 + 7 * i % 90, 5 + i % 20) for i in range(60)]
    limits = make_limits(num_blocks=24)
    one, two = (report_of(simulate(trace, limits, affine_steps)) for _ in range(2))
    assert one == two
    assert one.num_preemptions > 0
