"""Sampling of a device's steps where several ranks have the logits between them (as `execution.rank_samplers`).

What rank 0's device draws goes to the others' devices, in the order of the work and without the host; so a step of the
same kind is the same work on all ranks, and a graph can hold it. Every rank follows what the rows ask for, since that
decides which way a step goes.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from ...mailbox.messages.steps import PromptLogprobs, StepPlan
from ...models.collective import Collective
from ..input_batch import InputBatch, Int32s
from ..prepare_inputs import StepInputs
from ..prompt_pieces import PromptPieces
from ..rank_samplers import FollowingSampler, tell_sampled
from ..sampler import Sampled
from ..token_masks import Bools, TokenMasks
from .sampler_choice import MakeSampler
from .staging import StagingRing
from .step_sampler import ComputeLogits, ReadLogprobs, StepSampler


def sampler_of_rank(make: MakeSampler, collective: Collective) -> MakeSampler:
    """make: of a rank that has all of the logits."""

    def make_ranked(
        compute_logits: ComputeLogits, batch: InputBatch, vocab_size: int, max_places: int, device: torch.device
    ) -> StepSampler:
        sampler = make(compute_logits, batch, vocab_size, max_places, device)
        if collective.rank == 0:
            return LeadingStepSampler(sampler, collective, device)
        follower = FollowingSampler(compute_logits, vocab_size, collective, device)
        return FollowingStepSampler(sampler, follower, collective)

    return make_ranked


class LeadingStepSampler:
    """Of rank 0."""

    def __init__(self, sampler: StepSampler, collective: Collective, device: torch.device) -> None:
        self._sampler, self._collective, self._device = sampler, collective, device
        self.outputs = sampler.outputs

    def apply(self, plan: StepPlan) -> None:
        self._sampler.apply(plan)

    def clear(self) -> None:
        self._sampler.clear()

    def kind(self, rows: Int32s, positions: Int32s) -> Hashable | None:
        return self._sampler.kind(rows, positions)

    def can_draft(self, rows: Int32s) -> Bools:
        return self._sampler.can_draft(rows)

    def place_masks(self, masks: TokenMasks, rows: Int32s, positions: Int32s, ring: StagingRing) -> None:
        self._sampler.place_masks(masks, rows, positions, ring)

    def launch(self, logits: Tensor, rows: Tensor, positions: Tensor, kind: Hashable) -> None:
        self._sampler.launch(logits, rows, positions, kind)
        self._collective.broadcast(self.outputs[: len(logits)])

    def logprob_reader(self, rows: Int32s) -> ReadLogprobs | None:
        return self._sampler.logprob_reader(rows)

    def warm_up(self, logits: Tensor) -> None:
        self._sampler.warm_up(logits)

    def sample(self, hidden: Tensor, inputs: StepInputs, masks: TokenMasks | None = None) -> Sampled:
        return tell_sampled(lambda: self._sampler.sample(hidden, inputs, masks), inputs, self._collective, self._device)

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        return self._sampler.prompt_logprobs(pieces, hidden)


class FollowingStepSampler:
    """Of the other ranks, whose logits have no columns."""

    def __init__(self, sampler: StepSampler, follower: FollowingSampler, collective: Collective) -> None:
        """sampler: what rank 0 has, which says here what rows ask for, and draws nothing."""
        self._sampler, self._follower, self._collective = sampler, follower, collective
        self.outputs = sampler.outputs

    def apply(self, plan: StepPlan) -> None:
        self._sampler.apply(plan)

    def clear(self) -> None:
        self._sampler.clear()

    def kind(self, rows: Int32s, positions: Int32s) -> Hashable | None:
        return self._sampler.kind(rows, positions)

    def can_draft(self, rows: Int32s) -> Bools:
        return self._sampler.can_draft(rows)

    def place_masks(self, masks: TokenMasks, rows: Int32s, positions: Int32s, ring: StagingRing) -> None:
        """Rank 0 has them."""

    def launch(self, logits: Tensor, rows: Tensor, positions: Tensor, kind: Hashable) -> None:
        self._collective.broadcast(self.outputs[: len(logits)])

    def logprob_reader(self, rows: Int32s) -> ReadLogprobs | None:
        return None

    def warm_up(self, logits: Tensor) -> None:
        """Nothing is drawn here."""

    def sample(self, hidden: Tensor, inputs: StepInputs, masks: TokenMasks | None = None) -> Sampled:
        return self._follower.sample(hidden, inputs)

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        return self._follower.prompt_logprobs(pieces, hidden)
