"""Runs plans in a stage that is not the last: its layers over each step, handed on; nothing is sampled here.

A stage computes a step as soon as it has the plan, while those behind it compute earlier ones. The first stage needs
the tokens of a step for a row that it goes on with, and waits for them then; other stages are given hidden states.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

import numpy as np

from ..errors import SamplingFailed
from ..mailbox.messages.steps import StepPlan
from .forward import Forward
from .input_batch import InputBatch, Int32s, Int64s
from .pending_step import EndedStep, PendingStep
from .prepare_inputs import prepare_inputs
from .stage_links import HiddenSender, PlanId, TokenReceiver
from .warm_up import warm_up_plans
from .yields import NO_YIELDS, result_of


class _Sampled(NamedTuple):
    """Rows of a step whose tokens are drawn elsewhere: arrays [k]."""

    plan_id: PlanId
    rows: Int32s
    runs: Int64s
    positions: Int32s


class StageRunner:
    """The persistent batch of one rank. `sender`: that the forward pass hands its hidden states to; `tokens`: of the
    first stage."""

    def __init__(
        self,
        forward: Forward,
        sender: HiddenSender,
        tokens: TokenReceiver | None,
        *,
        max_num_seqs: int,
        max_model_len: int,
    ) -> None:
        self.forward = forward
        self.batch = InputBatch(max_num_seqs, max_model_len, forward.kv.block_size)
        self._sender, self._tokens = sender, tokens
        self._expected: deque[_Sampled] = deque()

    def launch(self, plan: StepPlan) -> PendingStep:
        """Raises ProtocolViolation for a plan that contradicts the batch, SamplingFailed for one that goes on behind a
        step that the last stage could not sample in."""
        start_ns = time.monotonic_ns()
        self.batch.apply(plan)
        try:
            self._compute(plan)
        except SamplingFailed:
            self._sender.send_nothing((plan.epoch, plan.step))
            raise
        return EndedStep(result_of(plan, NO_YIELDS, start_ns, time.monotonic_ns(), None))

    def _compute(self, plan: StepPlan) -> None:
        self._take_tokens(np.frombuffer(plan.rows, np.int32))
        inputs = prepare_inputs(self.batch, plan)
        if inputs.rows.size:
            self.forward.hidden_states(inputs, self.batch)
        if inputs.sample_rows.size:
            self.batch.expect_sampled(inputs.sample_rows, inputs.sample_positions)
            if self._tokens is not None:
                expected = _Sampled(inputs.plan_id, inputs.sample_rows, inputs.sample_runs, inputs.sample_positions)
                self._expected.append(expected)

    def use_idle_time(self) -> bool:
        """Nothing is done ahead."""
        return False

    def warm_up(self) -> None:
        """As `ModelRunner.warm_up`, in step with the other stages."""
        for plan in warm_up_plans(self.forward.kv.block_size, self.batch.max_model_len):
            self.launch(plan)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.batch.clear()
        self._expected.clear()

    def _take_tokens(self, rows: Int32s) -> None:
        """Those that these rows go on from, and what came before."""
        is_needed = [bool(np.isin(each.rows, rows).any()) for each in self._expected]
        if self._tokens is None or not any(is_needed):
            return
        for _ in range(len(is_needed) - is_needed[::-1].index(True)):
            sampled = self._expected.popleft()
            token_ids = self._tokens.receive(sampled.plan_id)
            is_same = self.batch.is_used[sampled.rows] & (self.batch.run[sampled.rows] == sampled.runs)
            self.batch.write_sampled(sampled.rows[is_same], sampled.positions[is_same], token_ids[is_same])
