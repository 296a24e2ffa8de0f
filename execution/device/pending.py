"""A step on the device until its tokens are on the host."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from ...errors import DeviceFault
from ...mailbox.messages.steps import PromptLogprobs, StepPlan, StepResult
from ..input_batch import InputBatch, Int32s, Int64s
from ..planned_rows import PlannedRows
from ..prepare_inputs import StepInputs, flat_inputs
from ..sampler import Sampled
from ..token_masks import Bools
from ..yields import Yields, result_of, single_yields, take_yields
from .seam import Device, Moment
from .step_sampler import ReadLogprobs


class Clock:
    """When the last step ended: the next one on the device begins no earlier."""

    def __init__(self) -> None:
        self._last_end_ns = 0

    def end(self, start_ns: int) -> tuple[int, int]:
        """(start, end) of a step that was launched at `start_ns` and has ended now."""
        start_ns = max(start_ns, self._last_end_ns)
        self._last_end_ns = time.monotonic_ns()
        return start_ns, self._last_end_ns


class LaunchedStep:
    """What a result is made of, but for the tokens."""

    def __init__(self, plan: StepPlan, planned: PlannedRows, batch: InputBatch, clock: Clock, start_ns: int) -> None:
        self.plan, self.planned, self.batch, self.clock, self.start_ns = plan, planned, batch, clock, start_ns
        self._were_drafts_asked = planned.num_drafts is not None
        self.drafted: StepInputs | None = None
        """The step laid out flat, if a row of it has drafts."""
        samples = planned.samples
        self.sample_rows: Int32s = planned.rows[samples]
        """[k]: one with drafts as often as it samples"""
        self.sample_runs: Int64s = planned.runs[samples]
        self.sample_positions: Int32s = planned.ends[samples]
        if planned.num_drafts is not None and planned.num_drafts.any():
            self.drafted = inputs = flat_inputs(batch, planned)
            self.sample_rows, self.sample_runs = inputs.sample_rows, inputs.sample_runs
            self.sample_positions = inputs.sample_positions
        self.of_prompts: PromptLogprobs | None = None
        self.read_logprobs: ReadLogprobs | None = None
        """None: only tokens are wanted."""
        self.is_late: Bools | None = None
        """[k], if some of the rows that sample are constrained."""

    def end(self, sampled: Sampled) -> StepResult:
        """The step has ended now; sampled: of the k places. The batch gets the tokens that count, unless another
        request stands in their row by now."""
        start_ns, end_ns = self.clock.end(self.start_ns)
        return result_of(self.plan, self._take(sampled), start_ns, end_ns, self.of_prompts)

    def _take(self, sampled: Sampled) -> Yields:
        if self.drafted is not None:  # nothing is launched before the host knows how far its rows have come
            return take_yields(self.batch, self.drafted, sampled, self.is_late)
        batch, rows, positions, runs = self.batch, self.sample_rows, self.sample_positions, self.sample_runs
        is_here = batch.is_used[rows] & (batch.run[rows] == runs)
        batch.write_sampled(rows[is_here], positions[is_here], sampled.token_ids[is_here])
        return single_yields(runs, positions, sampled, self.is_late, were_drafts_asked=self._were_drafts_asked)


NOTHING_SAMPLED = Sampled(np.empty(0, np.int32), {})
"""Of a step in which no row samples."""


class DeviceStep:
    """A step whose tokens are being copied. The batch gets them when it is settled."""

    def __init__(self, step: LaunchedStep, host: Tensor, arrival: Moment) -> None:
        """host: int32, the sampler's outputs from the moment `arrival` on, tokens first."""
        self._step, self._host, self._arrival = step, host, arrival
        self._result: StepResult | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the batch has its tokens."""
        return self._result is not None

    def is_done(self) -> bool:
        try:
            return self.is_settled or self._arrival.is_past()
        except torch.AcceleratorError as error:
            raise DeviceFault(str(error)) from error

    def result(self) -> StepResult:
        return self.settle()

    def settle(self) -> StepResult:
        """Wait for the tokens and give them to the batch; steps are settled in their order. Twice is once."""
        if self._result is None:
            try:
                self._arrival.wait()
            except torch.AcceleratorError as error:
                raise DeviceFault(str(error)) from error
            step, outputs = self._step, self._host.numpy()
            token_ids: Int32s = outputs[: step.sample_rows.size].copy()
            logprobs = {} if step.read_logprobs is None else step.read_logprobs(outputs)
            self._result = step.end(Sampled(token_ids, logprobs))
        return self._result


class TokenRing:
    """Where sampled tokens come to on the host: one more buffer than steps may be in flight."""

    def __init__(self, device: Device, num_slots: int, max_outputs: int) -> None:
        """max_outputs: int32s that a step's sampling yields at most."""
        self._device = device
        self._slots = [device.host_bytes(4 * max_outputs).view(torch.int32) for _ in range(num_slots)]
        self._readers: list[DeviceStep | None] = [None] * num_slots
        self._next = 0
        self._last: Moment | None = None

    def order(self) -> None:
        """What is launched from here on may write to where the last tokens were copied from."""
        if self._last is not None:
            self._device.order_after(self._last)

    def fetch(self, sampled: Tensor, step: LaunchedStep) -> DeviceStep:
        """Begin the copy of `sampled`, int32: tokens first; the work launched so far writes it."""
        reader = self._readers[self._next]
        if reader is not None:
            reader.settle()
        host = self._slots[self._next][: sampled.numel()]
        self._last = self._device.copy(host, sampled)
        made = self._readers[self._next] = DeviceStep(step, host, self._last)
        self._next = (self._next + 1) % len(self._slots)
        return made
