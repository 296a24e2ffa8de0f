"""Runs plans: one call a step, on the worker's step thread."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from ..mailbox.messages.steps import PromptLogprobs, StepPlan, StepResult
from .forward import Forward
from .input_batch import InputBatch
from .pending_step import EndedStep
from .prepare_inputs import prepare_inputs
from .prompt_pieces import find_prompt_pieces
from .sampler import Sampled
from .warm_up import warm_up_plans


class ModelRunner:
    """A model's forward pass with its KV cache, and the persistent batch of one rank: rows 0 .. max_num_seqs - 1, each
    of up to `max_model_len` tokens."""

    def __init__(self, forward: Forward, *, max_num_seqs: int, max_model_len: int) -> None:
        self.forward = forward
        self.batch = InputBatch(max_num_seqs, max_model_len, forward.kv.block_size)
        self.sampler = forward.make_sampler(self.batch)

    def launch(self, plan: StepPlan) -> EndedStep:
        """`run`, which ends before it returns."""
        return EndedStep(self.run(plan))

    def use_idle_time(self) -> bool:
        """Nothing is done ahead."""
        return False

    def run(self, plan: StepPlan) -> StepResult:
        """Apply the plan, compute its rows, sample. Raises ProtocolViolation for a plan that contradicts the batch."""
        start_ns = time.monotonic_ns()
        self.batch.apply(plan)
        self.sampler.apply(plan)
        inputs = prepare_inputs(self.batch, plan)
        sampled = Sampled(np.empty(0, np.int32), {})
        of_prompts: PromptLogprobs | None = None
        if inputs.rows.size:
            hidden = self.forward.hidden_states(inputs, self.batch)
            if (pieces := find_prompt_pieces(self.batch, inputs)) is not None:
                of_prompts = self.sampler.prompt_logprobs(pieces, hidden)
            if inputs.sample_rows.size:
                sampled = self.sampler.sample(hidden, inputs)
                self.batch.write_sampled(inputs.sample_rows, inputs.sample_positions, sampled.token_ids)
        result = StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=inputs.sample_runs.tobytes(),
            positions=inputs.sample_positions.tobytes(),
            token_ids=sampled.token_ids.tobytes(),
            start_ns=start_ns,
            end_ns=time.monotonic_ns(),
            prompt_logprobs=of_prompts,
        )
        return msgspec.structs.replace(result, **sampled.logprobs) if sampled.logprobs else result

    def warm_up(self) -> None:
        """Run small steps of every kind, so that the first request does not pay for first calls. The batch is left
        empty; block 0 is written to. Raises what a step may raise."""
        for plan in warm_up_plans(self.forward.kv.block_size, self.batch.max_model_len):
            self.run(plan)
        self.clear()

    def clear(self) -> None:
        """Forget all rows: the scheduler that placed them is gone, or a step failed."""
        self.batch.clear()
        self.sampler.clear()
