"""Sampling where several ranks have the logits between them: rank 0 gathers them and draws, the others are told.

Every rank makes the same calls of the collective in the same order: each part of logits is gathered, then the tokens,
or the word that there are none, are broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from ..errors import ActorFault, RankFailed, SamplingFailed
from ..mailbox.messages.steps import PromptLogprobs, StepPlan
from ..models.collective import Collective
from .input_batch import Int32s
from .prepare_inputs import StepInputs
from .prompt_logprobs import parts_of
from .prompt_pieces import PromptPieces
from .sampler import Sampled, Sampler
from .stage_links import TokenSender
from .token_counts import Float32s
from .token_masks import TokenMasks

_SAMPLED, _FAILED = 0, 1
"""What stands before the tokens of a step."""


@contextmanager
def whole_group_fails() -> Iterator[None]:
    """What is raised between two exchanges ends this rank, and so its group, for the others wait for it; but for what
    all hear of."""
    try:
        yield
    except (ActorFault, SamplingFailed):
        raise
    except Exception as error:
        raise RankFailed(f"{type(error).__name__}: {error}") from error


def tell_sampled(
    sample: Callable[[], Sampled], inputs: StepInputs, collective: Collective, device: torch.device
) -> Sampled:
    """Of rank 0: what `sample` draws is told to the others, or that it failed."""
    words = np.full(inputs.sample_rows.size + 1, _FAILED, np.int64)

    def tell() -> None:
        collective.broadcast(torch.from_numpy(words).to(device))

    try:
        sampled = sample()
    except ActorFault:
        raise
    except Exception:
        tell()  # the step fails here and there, and its requests are tried in halves
        raise
    words[0], words[1:] = _SAMPLED, sampled.token_ids
    tell()
    return sampled


def hear_sampled(inputs: StepInputs, collective: Collective, device: torch.device) -> Sampled:
    """Of the other ranks. Raises SamplingFailed."""
    words = torch.zeros(inputs.sample_rows.size + 1, dtype=torch.int64, device=device)
    told = collective.broadcast(words).cpu().numpy()
    if told[0] != _SAMPLED:
        raise SamplingFailed("rank 0 failed to sample in this step")
    return Sampled(told[1:].astype(np.int32), {})


class LeadingSampler:
    """Of rank 0: what `sampler` draws is told to the others."""

    def __init__(self, sampler: Sampler, collective: Collective, device: torch.device) -> None:
        self._sampler, self._collective, self._device = sampler, collective, device

    def apply(self, plan: StepPlan) -> None:
        with whole_group_fails():
            self._sampler.apply(plan)

    def clear(self) -> None:
        self._sampler.clear()

    def sample(
        self,
        hidden: Tensor,
        inputs: StepInputs,
        masks: TokenMasks | None = None,
        drafts: Int32s | None = None,
        proposed: Float32s | None = None,
    ) -> Sampled:
        return tell_sampled(
            lambda: self._sampler.sample(hidden, inputs, masks, drafts, proposed),
            inputs,
            self._collective,
            self._device,
        )

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        with whole_group_fails():
            return self._sampler.prompt_logprobs(pieces, hidden)


class TellingSampler:
    """Of the rank that samples where there are several stages: the first stage is told what `sampler` draws."""

    def __init__(self, sampler: Sampler, tokens: TokenSender) -> None:
        self._sampler, self._tokens = sampler, tokens

    def apply(self, plan: StepPlan) -> None:
        with whole_group_fails():
            self._sampler.apply(plan)

    def clear(self) -> None:
        self._sampler.clear()

    def sample(
        self,
        hidden: Tensor,
        inputs: StepInputs,
        masks: TokenMasks | None = None,
        drafts: Int32s | None = None,
        proposed: Float32s | None = None,
    ) -> Sampled:
        try:
            sampled = self._sampler.sample(hidden, inputs, masks, drafts, proposed)
        except ActorFault:
            raise
        except Exception:
            self._tokens.send(inputs.plan_id, None)
            raise
        self._tokens.send(inputs.plan_id, sampled.token_ids)
        return sampled

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        with whole_group_fails():
            return self._sampler.prompt_logprobs(pieces, hidden)


class FollowingSampler:
    """Of the other ranks. `compute_logits`: [k, hidden_size] -> nothing here, but rank 0 gets this rank's part."""

    def __init__(
        self,
        compute_logits: Callable[[Tensor], Tensor],
        vocab_size: int,
        collective: Collective,
        device: torch.device,
    ) -> None:
        self._compute_logits, self._vocab_size = compute_logits, vocab_size
        self._collective, self._device = collective, device

    def apply(self, plan: StepPlan) -> None:
        """Nothing is drawn here."""

    def clear(self) -> None:
        """As `apply`."""

    @torch.inference_mode()
    def sample(
        self,
        hidden: Tensor,
        inputs: StepInputs,
        masks: TokenMasks | None = None,
        drafts: Int32s | None = None,
        proposed: Float32s | None = None,
    ) -> Sampled:
        """Raises SamplingFailed."""
        self._compute_logits(hidden[torch.from_numpy(inputs.last_tokens).to(self._device)])
        return hear_sampled(inputs, self._collective, self._device)

    @torch.inference_mode()
    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        """Empty: rank 0 has them."""
        predictors = torch.from_numpy(pieces.predictors).to(hidden.device)
        for part in parts_of(pieces, hidden.device, self._vocab_size):
            self._compute_logits(hidden[predictors[part]])
        floats, ints = np.empty(0, np.float32), np.empty(0, np.int32)
        return pieces.encode(floats, ints, ints, floats)
