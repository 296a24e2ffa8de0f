"""The device and the host beside it, in virtual time: plans in, results out, in order."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np

from ..mailbox.messages.steps import StepPlan, StepResult
from .step_load import StepLoad, StepTimes, decode_load, load_of


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
    runs: bytes
    """As in the result."""
    positions: bytes


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
        load, runs, positions = self._work_of(plan)
        duration_ns = self._times.step_ns(load)
        self._device_ns = start_ns + duration_ns
        self.busy_ns += duration_ns
        self._steps.append(_Running(start_ns, self._device_ns, plan, runs, positions))

    def take_result(self) -> StepResult:
        """Of the oldest step, which has ended."""
        start_ns, end_ns, plan, runs, positions = self._steps.popleft()
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

    def _work_of(self, plan: StepPlan) -> tuple[StepLoad, bytes, bytes]:
        """The load, the runs that yield a token, and its positions. Most steps only decode: for them it is short."""
        starts, num_bytes = np.frombuffer(plan.starts, "<i4"), len(plan.num_tokens)
        if plan.num_tokens == self._ones[:num_bytes] and plan.samples == self._trues[: num_bytes // 4]:
            return decode_load(starts), plan.runs, (starts + 1).tobytes()
        num_tokens, samples = np.frombuffer(plan.num_tokens, "<i4"), np.frombuffer(plan.samples, np.bool_)
        runs = np.frombuffer(plan.runs, "<i8")[samples].tobytes()
        load = load_of(starts, num_tokens, len(runs) // 8)
        return load, runs, (starts + num_tokens)[samples].tobytes()

    def _token_ids(self, runs: bytes) -> bytes:
        """A run's number stands for each token that it yields: what two requests write is never the same."""
        if runs != self._last_runs:
            self._last_runs = runs
            self._last_tokens = np.frombuffer(runs, "<i8").astype("<i4").tobytes()
        return self._last_tokens
