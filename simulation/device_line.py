"""The device and the host beside it, in virtual time: plans in, results out, in order."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np

from ..mailbox.messages.steps import StepPlan, StepResult
from .step_load import StepTimes, decode_load, load_of


class ControlTimes(msgspec.Struct, frozen=True):
    """What a step costs beside the device [ns].

    With 50 us to schedule and 100 us to prepare a step of 15 ms takes 15.15 ms at depth 1 and 15.0 ms at depth 2.
    """

    schedule_ns: int = 50_000
    """From the scheduler's call to the plan on the board; it makes one plan at a time."""
    prepare_ns: int = 100_000
    """From the plan to its launch, on the worker's host; one plan at a time, while the device runs another."""
    report_ns: int = 0
    """From a step's end to the scheduler that hears of it."""
    ingress_ns: int = 0
    """From a request's arrival to the scheduler: transport and tokenizing."""


class _Running(NamedTuple):
    start_ns: int
    end_ns: int
    plan: StepPlan


class DeviceLine:
    """Runs each plan once it is prepared and the one before has ended."""

    def __init__(self, step_times: StepTimes, control: ControlTimes, max_num_seqs: int) -> None:
        self._times, self._prepare_ns, self._report_ns = step_times, control.prepare_ns, control.report_ns
        self._host_ns = self._device_ns = 0
        self._steps: deque[_Running] = deque()
        self._ones = np.ones(max_num_seqs, "<i4").tobytes()
        self._trues = np.ones(max_num_seqs, np.bool_).tobytes()
        self._last_runs, self._last_tokens = b"", b""
        self.busy_ns = 0
        """Time that steps took."""

    @property
    def next_result_ns(self) -> int | None:
        """When the scheduler can hear of the oldest step; None: nothing runs."""
        return self._steps[0].end_ns + self._report_ns if self._steps else None

    def launch(self, plan: StepPlan, published_ns: int) -> None:
        """A plan is on the board."""
        self._host_ns = max(published_ns, self._host_ns) + self._prepare_ns
        start_ns = max(self._host_ns, self._device_ns)
        duration_ns = self._duration_ns(plan)
        self._device_ns = start_ns + duration_ns
        self.busy_ns += duration_ns
        self._steps.append(_Running(start_ns, self._device_ns, plan))

    def take_result(self) -> StepResult:
        """Of the oldest step, which has ended."""
        start_ns, end_ns, plan = self._steps.popleft()
        runs, positions = self._sampled(plan)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=runs,
            positions=positions,
            token_ids=self._token_ids(runs),
            start_ns=start_ns,
            end_ns=end_ns,
            num_plans_waiting=len(self._steps),
        )

    def _is_decode(self, plan: StepPlan) -> bool:
        num_bytes = len(plan.num_tokens)
        return plan.num_tokens == self._ones[:num_bytes] and plan.samples == self._trues[: num_bytes // 4]

    def _duration_ns(self, plan: StepPlan) -> int:
        starts = np.frombuffer(plan.starts, "<i4")
        if self._is_decode(plan):
            return self._times.step_ns(decode_load(starts))
        num_tokens = np.frombuffer(plan.num_tokens, "<i4")
        return self._times.step_ns(load_of(starts, num_tokens, plan.samples.count(1)))

    def _sampled(self, plan: StepPlan) -> tuple[bytes, bytes]:
        """Runs that yield a token, and its positions."""
        starts = np.frombuffer(plan.starts, "<i4")
        if self._is_decode(plan):
            return plan.runs, (starts + 1).tobytes()
        samples = np.frombuffer(plan.samples, np.bool_)
        positions = starts + np.frombuffer(plan.num_tokens, "<i4")
        return np.frombuffer(plan.runs, "<i8")[samples].tobytes(), positions[samples].tobytes()

    def _token_ids(self, runs: bytes) -> bytes:
        """A run's number stands for each token that it yields: what two requests write is never the same."""
        if runs != self._last_runs:
            self._last_runs = runs
            self._last_tokens = np.frombuffer(runs, "<i8").astype("<i4").tobytes()
        return self._last_tokens
