"""The device and the host beside it, in virtual time: plans in, results out, in order."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..mailbox.messages.steps import StepPlan, StepResult
from .step_load import StepLoad, StepTimes, decode_load, load_of

Int32s = npt.NDArray[np.int32]


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
    epoch: int
    step: int
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
        self.busy_ns = 0
        """Time that steps took."""

    @property
    def next_result_ns(self) -> int | None:
        """When the scheduler can hear of the oldest step; None: nothing runs."""
        return self._steps[0].end_ns + self._report_ns if self._steps else None

    def launch(self, plan: StepPlan, published_ns: int) -> None:
        """A plan is on the board."""
        load, runs, positions = self._work_of(plan)
        start_ns, end_ns = self._run(load, published_ns)
        self._steps.append(_Running(start_ns, end_ns, plan.epoch, plan.step, runs, positions))

    def decode(
        self, load: StepLoad, positions: Int32s, max_steps: int, free_ns: int, schedule_ns: int, until_ns: float
    ) -> list[int]:
        """Take in the results of the oldest steps, one by one, and after each launch one more plan of the same rows.

        As `take_result` and `launch` in turn: `load` is that of the first plan, `positions` [n] those of its tokens;
        the scheduler is free from `free_ns` on and takes `schedule_ns` for a plan. Returns when it takes each of the
        results: at most `max_steps`, each before `until_ns`, and none if two are there at once.
        """
        steps, num_rows, report_ns = self._steps, load.num_samples, self._report_ns
        last, context_tokens = steps[-1], load.context_tokens
        spans = deque((step.start_ns, step.end_ns) for step in steps)
        taken_ns: list[int] = []
        while len(taken_ns) < max_steps:
            now_ns = max(free_ns, spans[0][1] + report_ns)
            is_crowded = len(spans) > 1 and spans[1][1] + report_ns <= now_ns
            if now_ns >= until_ns or is_crowded:
                break
            taken_ns.append(now_ns)
            free_ns = now_ns + schedule_ns
            spans.popleft()
            spans.append(self._run(StepLoad(num_rows, 0, 0, context_tokens, 0, 0, num_rows), free_ns))
            context_tokens += num_rows
        num_taken = len(taken_ns)
        for nth in range(max(0, num_taken - len(spans)), num_taken):
            start_ns, end_ns = spans[nth - num_taken]
            steps.popleft()
            now_at = (positions + np.int32(nth)).tobytes()
            steps.append(_Running(start_ns, end_ns, last.epoch, last.step + 1 + nth, last.runs, now_at))
        return taken_ns

    def take_result(self) -> StepResult:
        """Of the oldest step, which has ended."""
        ended = self._steps.popleft()
        return StepResult(
            epoch=ended.epoch,
            step=ended.step,
            runs=ended.runs,
            positions=ended.positions,
            token_ids=self.token_ids_of(ended.runs).tobytes(),
            start_ns=ended.start_ns,
            end_ns=ended.end_ns,
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

    @staticmethod
    def token_ids_of(runs: bytes) -> Int32s:
        """A run's number stands for each token that it yields: what two requests write is never the same."""
        return np.frombuffer(runs, "<i8").astype("<i4")

    def _run(self, load: StepLoad, published_ns: int) -> tuple[int, int]:
        """(start, end) of the next step."""
        self._host_ns = max(published_ns, self._host_ns) + self._prepare_ns
        start_ns = max(self._host_ns, self._device_ns)
        duration_ns = self._times.step_ns(load)
        self._device_ns = start_ns + duration_ns
        self.busy_ns += duration_ns
        return start_ns, self._device_ns
