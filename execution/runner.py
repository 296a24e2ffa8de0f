"""Runs plans: one call a step, on the worker's step thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..mailbox.messages.steps import PromptLogprobs, StepPlan, StepResult
from ..speculative.acceptance import Rule, drafts_of_places
from ..speculative.proposer import Proposer
from .drafter import Drafter
from .forward import Forward
from .input_batch import InputBatch, Int32s
from .pending_step import EndedStep, HeldStep, PendingStep
from .prepare_inputs import StepInputs, prepare_inputs
from .prompt_pieces import find_prompt_pieces
from .token_masks import MaskReader, MaskSource, TokenMasks
from .warm_up import warm_up_plans
from .yields import NO_YIELDS, result_of, take_yields


class ModelRunner:
    """A model's forward pass with its KV cache, and the persistent batch of one rank: rows 0 .. max_num_seqs - 1, each
    of up to `max_model_len` tokens."""

    def __init__(
        self,
        forward: Forward,
        *,
        max_num_seqs: int,
        max_model_len: int,
        masks: MaskSource | None = None,
        proposer: Proposer | Callable[[InputBatch], Proposer] | None = None,
        acceptance: Rule = "coupled",
        tells_drafts: bool = True,
    ) -> None:
        """masks: of constrained rows, if there may be any; proposer: guesses where plans ask for it, or makes
        of the batch what does; acceptance: the rule by which drafts are accepted;
        tells_drafts: rows under a grammar have drafts, too, told a step ahead."""
        self.forward = forward
        self.batch = InputBatch(max_num_seqs, max_model_len, forward.kv.block_size)
        self.sampler = forward.make_sampler(self.batch)
        self._drafter = Drafter(
            self.batch, proposer(self.batch) if callable(proposer) else proposer, tells_drafts=tells_drafts
        )
        self._acceptance: Rule = acceptance
        self._masks = MaskReader(self.batch, masks, forward.shape.vocab_size)

    def launch(self, plan: StepPlan) -> PendingStep:
        """Apply the plan and compute it before this returns; all of a step with constrained rows that sample is
        computed when it goes on. Raises ProtocolViolation for a plan that contradicts the batch."""
        start_ns = time.monotonic_ns()
        inputs = self._begin(plan)
        masks = self._masks.begin(
            plan.epoch, inputs.sample_rows, inputs.sample_runs, inputs.sample_positions, inputs.sample_counts
        )
        if masks is None:
            return EndedStep(self._compute(plan, inputs, start_ns))
        return HeldStep(lambda: EndedStep(self._compute(plan, inputs, time.monotonic_ns(), masks.take)))

    def use_idle_time(self) -> bool:
        """Nothing is done ahead."""
        return False

    def run(self, plan: StepPlan) -> StepResult:
        """A step alone: its rows computed and sampled."""
        return self.launch(plan).result()

    def _begin(self, plan: StepPlan) -> StepInputs:
        self.batch.apply(plan)
        self.sampler.apply(plan)
        self._drafter.apply(plan)
        return prepare_inputs(self.batch, plan, self._drafter if self._drafter.has_proposer else None)

    def _compute(
        self, plan: StepPlan, inputs: StepInputs, start_ns: int, take_masks: Callable[[], TokenMasks] | None = None
    ) -> StepResult:
        """take_masks: called behind the forward pass; None: no row that samples is constrained."""
        yields = NO_YIELDS
        of_prompts: PromptLogprobs | None = None
        if inputs.rows.size:
            hidden = self.forward.hidden_states(inputs, self.batch)
            if (pieces := find_prompt_pieces(self.batch, inputs)) is not None:
                of_prompts = self.sampler.prompt_logprobs(pieces, hidden)
            if inputs.sample_rows.size:
                masks = None if take_masks is None else take_masks()
                drafts = self._drafts_to_verify(inputs)
                drawn_from = None if drafts is None else self._drafter.probs
                sampled = self.sampler.sample(hidden, inputs, masks, drafts, drawn_from)
                is_late = None if masks is None else masks.is_late
                yields = take_yields(self.batch, inputs, sampled, is_late, stays=self._drafter.stays_without_masks)
            self._drafter.observe(hidden, inputs)
        next_drafts = self._drafter.guess_ahead()
        return result_of(plan, yields, start_ns, time.monotonic_ns(), of_prompts, next_drafts)

    def _drafts_to_verify(self, inputs: StepInputs) -> Int32s | None:
        """int32 [k], as the sampler takes them; None where it may draw whatever drafts there are."""
        if self._acceptance == "coupled" or inputs.sample_counts is None:
            return None
        in_place = self.batch.token_ids[inputs.sample_rows, inputs.sample_positions]
        return drafts_of_places(in_place, inputs.sample_counts)

    def warm_up(self) -> None:
        """Run small steps of every kind, so that the first request does not pay for first calls. The batch is left
        empty; block 0 is written to. Raises what a step may raise."""
        take = (lambda: self._masks.allowing_all(1)) if self._masks.has_source else None
        for plan in warm_up_plans(self.forward.kv.block_size, self.batch.max_model_len):
            self._compute(plan, self._begin(plan), time.monotonic_ns(), take)
        self.clear()

    def clear(self) -> None:
        """Forget all rows: the scheduler that placed them is gone, or a step failed."""
        self._drafter.clear()
        self.batch.clear()
        self.sampler.clear()
