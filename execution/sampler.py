"""What becomes of a step's hidden states: tokens, and the log-probabilities that requests want.

Where the forward pass computes with torch so does its sampler (`torch_sampler`); that of a model that is compiled for
the CPU works on numpy's arrays (`host_sampler`), so that its process needs no torch. Both follow the same formulas and
draw from the same noise.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..mailbox.messages.steps import PromptLogprobs, StepPlan
from .input_batch import Int32s
from .prepare_inputs import StepInputs
from .prompt_pieces import PromptPieces
from .token_counts import Float32s
from .token_masks import TokenMasks

Array = Any
"""A tensor of the model's device, or an array: what a forward pass returns, its sampler takes."""


class Sampled(NamedTuple):
    """Of the k rows of a step that sample."""

    token_ids: Int32s
    """[k]"""
    logprobs: dict[str, bytes]
    """The fields of `StepResult` about log-probabilities; empty if no row asks."""


class Sampler(Protocol):
    """Follows the rows of one persistent batch."""

    def apply(self, plan: StepPlan) -> None:
        """The batch has applied the plan."""
        ...

    def clear(self) -> None:
        """Forget every row."""
        ...

    def sample(
        self,
        hidden: Array,
        inputs: StepInputs,
        masks: TokenMasks | None = None,
        drafts: Int32s | None = None,
        proposed: Float32s | None = None,
    ) -> Sampled:
        """hidden: [t, hidden_size] of the step; some row samples. A row that is late is sampled without a mask. drafts:
        int32 [k], of each place, `NO_DRAFT` where there is none: verified by rejection, so that the token is the draft
        or is drawn in its place; None: tokens are what they are without drafts. proposed: float32 [d, vocab], what each
        of the d drafts among them was drawn from; None: they were not drawn."""
        ...

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Array) -> PromptLogprobs:
        """hidden: as above."""
        ...


@runtime_checkable
class DraftSampler(Protocol):
    """A sampler of a model that drafts."""

    def draw(self, hidden: Array, inputs: StepInputs, *, with_probs: bool) -> tuple[Int32s, Float32s | None]:
        """Drafts: tokens of the k rows that sample, int32 [k], with their temperature, filters and noise, but nothing
        else that requests ask for; and, if wanted, float32 [k, vocab]: the distribution that each was drawn from (of a
        greedy row anything)."""
        ...
