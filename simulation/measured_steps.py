"""What a run that was recorded says of its device: follows the replay of a journal, and notes what each step took.

It has the shape of `journal.replay.Observer`. A step whose plan was there when the one before ended took the time from
that end to its own, so what the worker does between steps is in it; any other took the time that the worker says, and
the median of what lies between. That much is not counted again in the time from such a step's plan to its start.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from ..mailbox.messages.admission import Admit
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event
from .device_line import ControlTimes
from .fit import StepSample
from .periods import Period, is_within
from .step_load import StepLoad, load_of


class _Step(msgspec.Struct, frozen=True, gc=False):
    load: StepLoad
    run_ns: int
    """As the worker says."""
    gap_ns: int | None
    """Between the end of the step before and its start; None: the worker waited for its plan."""


class MeasuredSteps:
    """Collects; then `samples` and `control_times`.

    Of steps that start within one of the `periods`, and requests that come to the scheduler in them; None: of all.
    """

    def __init__(self, periods: Sequence[Period] | None = None) -> None:
        self._periods = periods
        self._plans: dict[tuple[int, int], StepPlan] = {}
        self._steps: list[_Step] = []
        self._pickup_ns: list[int] = []
        self._report_ns: list[int] = []
        self._ingress_ns: list[int] = []
        self._last_end_ns = 0

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        """The scheduler got these."""
        for event in events:
            if isinstance(event, Admit) and event.attempt == 1:
                if self._is_chosen(now_ns):
                    self._ingress_ns.append(now_ns - event.arrival_ns)
            elif isinstance(event, StepResult):
                plan = self._plans.pop((event.epoch, event.step), None)
                if plan is not None and event.outcome is StepOutcome.DONE:
                    self._take(now_ns, plan, event)

    def planned(self, plan: StepPlan) -> None:
        """It made this plan."""
        self._plans[plan.epoch, plan.step] = plan

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        """It sent this: nothing to learn."""

    def forget(self) -> None:
        """The life of one scheduler is over: what is in flight has no result, and another's time is another's."""
        self._plans.clear()
        self._last_end_ns = 0

    def samples(self) -> list[StepSample]:
        """Of every step that was run."""
        gap_ns = self._gap_ns()
        return [
            StepSample(step.run_ns + (gap_ns if step.gap_ns is None else step.gap_ns), step.load)
            for step in self._steps
        ]

    def control_times(self) -> ControlTimes:
        """Medians. What the worker does before a step is in the samples."""
        return ControlTimes(
            schedule_ns=max(0, _median(self._pickup_ns) - self._gap_ns()),
            prepare_ns=0,
            report_ns=_median(self._report_ns),
            ingress_ns=_median(self._ingress_ns),
        )

    def _is_chosen(self, time_ns: int) -> bool:
        return self._periods is None or is_within(self._periods, time_ns)

    def _gap_ns(self) -> int:
        """What the worker does between two steps."""
        return _median([step.gap_ns for step in self._steps if step.gap_ns is not None])

    def _take(self, now_ns: int, plan: StepPlan, result: StepResult) -> None:
        last_end_ns, self._last_end_ns = self._last_end_ns, result.end_ns
        if not self._is_chosen(result.start_ns):
            return
        starts, num_tokens = np.frombuffer(plan.starts, "<i4"), np.frombuffer(plan.num_tokens, "<i4")
        load = load_of(starts, num_tokens, plan.samples.count(1))
        gap_ns = None
        if plan.now_ns < last_end_ns:
            gap_ns = max(0, result.start_ns - last_end_ns)
        else:
            self._pickup_ns.append(result.start_ns - plan.now_ns)
        self._steps.append(_Step(load, result.end_ns - result.start_ns, gap_ns))
        self._report_ns.append(now_ns - result.end_ns)


def _median(times_ns: Sequence[int]) -> int:
    return round(float(np.median(times_ns))) if times_ns else 0
