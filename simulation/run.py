"""The real scheduler, driven by a trace in virtual time.

The scheduler is called as its actor calls it: with what has come, then again while it makes plans. Each plan costs
`schedule_ns`, in which nothing else is handled; a token is at its client when the scheduler takes the result in.
Nothing is random, so a simulation repeats itself exactly.

Most steps only decode, and nothing comes between: those the scheduler takes at once, and what is to be told of them is
told as if it had taken them singly.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Sequence
from math import inf

import numpy as np

from ..mailbox.messages.admission import Admit
from ..mailbox.messages.sampling import SamplingParams
from ..scheduling.events import Event, WorkerAttached
from ..scheduling.limits import SchedulerLimits
from ..scheduling.row_arrays import ONE
from ..scheduling.scheduler import Scheduler
from .device_line import ControlTimes, DeviceLine
from .history import History, HistoryRecorder
from .prompts import prompt_token_ids
from .step_load import StepTimes, decode_load
from .trace import Trace, TraceRequest

NUM_GAUGES = 2000
"""Points of a simulation's gauges over the trace's length, at least 10 ms apart."""
_MIN_GAUGE_NS = 10_000_000
_COLLECT_EVERY = 256
"""Calls of the scheduler."""


def simulate(
    trace: Trace, limits: SchedulerLimits, step_times: StepTimes, control: ControlTimes | None = None
) -> History:
    """Run a trace (in the order of arrival) to its end; what happened to each request, and the gauges over time."""
    return Simulation(trace, limits, step_times, control or ControlTimes()).run()


class Simulation:
    """One run. `scheduler` may be looked at when it is over.

    `is_stepwise`: it is asked for every step, even for those that are known beforehand; what happens is the same.
    """

    def __init__(
        self,
        trace: Trace,
        limits: SchedulerLimits,
        step_times: StepTimes,
        control: ControlTimes,
        *,
        is_stepwise: bool = False,
    ) -> None:
        self.scheduler = Scheduler(limits)
        self._is_stepwise = is_stepwise
        self._trace = trace
        self._device = DeviceLine(step_times, control, limits.max_num_seqs)
        self._schedule_ns, self._ingress_ns = control.schedule_ns, control.ingress_ns
        last_ns = trace[-1].arrival_ns if trace else 0
        self._recorder = HistoryRecorder(trace, max(last_ns // NUM_GAUGES, _MIN_GAUGE_NS), limits.num_blocks)
        self._has_deadlines = any(request.deadline_ns is not None for request in trace)
        self._depth = limits.pipeline_depth
        self._num_arrived = 0
        self.num_handled = 0
        """Calls of the scheduler with what had come."""
        self.scheduler.step(0, [WorkerAttached(1)])

    def run(self) -> History:
        """Until every request has ended."""
        free_ns = 0
        had_gc = gc.isenabled()
        gc.disable()  # it would look through the whole trace again and again, and nothing here is garbage in circles
        try:
            while (next_ns := self._next_ns()) is not None:
                now_ns = max(free_ns, next_ns)
                free_ns = self._handle(now_ns, self._due(now_ns))
                self.num_handled += 1
                if not self.num_handled % _COLLECT_EVERY:
                    self._collect()
                if not self._is_stepwise:
                    free_ns = self._run_steady(free_ns)
        finally:
            if had_gc:
                gc.enable()
        self._collect()
        statistics = self.scheduler.statistics()
        assert not statistics.num_running + statistics.num_waiting, "requests are left, and nothing happens any more"
        return self._recorder.finish(statistics, self._device.busy_ns)

    def _handle(self, now_ns: int, events: Sequence[Event]) -> int:
        """What the actor does when it wakes; returns when the scheduler is free again."""
        scheduler, recorder = self.scheduler, self._recorder
        free_ns = now_ns
        plan = scheduler.step(now_ns, events)
        while plan is not None:
            free_ns += self._schedule_ns
            if plan.new_rows:
                recorder.place(plan.new_rows)
            self._device.launch(plan, free_ns)
            plan = scheduler.step(free_ns, ()) if scheduler.can_plan else None
        if now_ns >= recorder.next_gauge_ns:
            statistics = scheduler.statistics()
            recorder.gauge(now_ns, statistics.num_running, statistics.num_waiting, statistics.num_free_blocks)
        return free_ns

    def _run_steady(self, free_ns: int) -> int:
        """Steps in which nothing happens but that each row decodes, at once; returns when the scheduler is free."""
        steady = self.scheduler.find_steady()
        if steady is None:
            return free_ns
        times_ns = self._device.decode(
            decode_load(steady.starts),
            steady.starts + ONE,
            steady.max_steps,
            free_ns,
            self._schedule_ns,
            self._next_arrival_ns(),
        )
        if not times_ns:
            return free_ns
        token_ids = np.empty((len(times_ns), len(steady.rows)), np.int32)
        token_ids[:] = self._device.token_ids_of(steady.runs)
        taken_at = self.scheduler.take_steady_steps(steady, times_ns, token_ids, has_successor=self._depth > 1)
        recorder = self._recorder
        recorder.take_steady(times_ns, steady.runs, steady.num_tokens)
        for step, now_ns in enumerate(times_ns):
            if now_ns >= recorder.next_gauge_ns:
                num_free = steady.num_free_blocks - bisect_right(taken_at, step)
                recorder.gauge(now_ns, len(steady.rows), 0, num_free)
        return times_ns[-1] + self._schedule_ns

    def _next_arrival_ns(self) -> float:
        """When the scheduler hears of the next request."""
        at = self._num_arrived
        return self._trace[at].arrival_ns + self._ingress_ns if at < len(self._trace) else inf

    def _collect(self) -> None:
        """Seldom: the times of tokens are those of results, and what is unsent waits in the scheduler."""
        has_more = True
        while has_more:
            outgoing = self.scheduler.collect()
            self._recorder.end(outgoing)
            has_more = outgoing.has_more

    def _next_ns(self) -> int | None:
        """When something happens next."""
        next_ns = self._device.next_result_ns
        if self._num_arrived < len(self._trace):
            arrival_ns = self._trace[self._num_arrived].arrival_ns + self._ingress_ns
            next_ns = arrival_ns if next_ns is None or arrival_ns < next_ns else next_ns
        if self._has_deadlines and (deadline_ns := self.scheduler.next_deadline_ns()) is not None:
            next_ns = deadline_ns if next_ns is None or deadline_ns < next_ns else next_ns
        return next_ns

    def _due(self, now_ns: int) -> list[Event]:
        """Results and requests that have come by now; results first, for they free what requests need."""
        events: list[Event] = []
        device = self._device
        while (result_ns := device.next_result_ns) is not None and result_ns <= now_ns:
            result = device.take_result()
            self._recorder.take(now_ns, result)
            events.append(result)
        trace, at = self._trace, self._num_arrived
        while at < len(trace) and trace[at].arrival_ns + self._ingress_ns <= now_ns:
            events.append(_admit(trace[at], at))
            at += 1
        self._num_arrived = at
        return events


def _admit(request: TraceRequest, index: int) -> Admit:
    return Admit(
        request_id=str(index),
        choice=0,
        attempt=1,
        tokenizer="",
        prompt_token_ids=prompt_token_ids(request, index),
        sampling=SamplingParams(seed=0, max_tokens=request.num_output_tokens, ignore_eos=True),
        eos_token_ids=(),
        arrival_ns=request.arrival_ns,
        priority=request.priority,
        tenant=request.tenant,
        deadline_ns=None if request.deadline_ns is None else request.arrival_ns + request.deadline_ns,
    )
