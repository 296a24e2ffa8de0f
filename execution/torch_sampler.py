"""Sampling in torch, on the model's device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..kernels.bitmask_words import allowed_tokens
from ..kernels.rejection import sample_or_verify
from ..kernels.sampling import processed_logits, sample
from ..kernels.token_bitmask import apply_token_mask
from ..mailbox.messages.steps import PromptLogprobs, StepPlan
from .input_batch import InputBatch, Int32s, Int64s
from .logit_changes import LogitChanges
from .prepare_inputs import StepInputs
from .prompt_logprobs import prompt_logprobs
from .prompt_pieces import PromptPieces
from .sampled_logprobs import StepLogits, sampled_logprobs
from .sampler import Sampled
from .sampling_batch import Place, parameters_of, sampling_batch
from .token_counts import Float32s
from .token_masks import TokenMasks


class TorchSampler:
    """`compute_logits`: [k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""

    def __init__(
        self, compute_logits: Callable[[Tensor], Tensor], batch: InputBatch, vocab_size: int, device: torch.device
    ) -> None:
        self._compute_logits, self._batch, self._device = compute_logits, batch, device
        self._vocab_size = vocab_size
        self.logit_changes = LogitChanges(batch, vocab_size, self._to_device, self._apply_masks)

    def apply(self, plan: StepPlan) -> None:
        self.logit_changes.apply(plan)

    def clear(self) -> None:
        self.logit_changes.clear()

    @torch.inference_mode()
    def sample(
        self,
        hidden: Tensor,
        inputs: StepInputs,
        masks: TokenMasks | None = None,
        drafts: Int32s | None = None,
        proposed: Float32s | None = None,
    ) -> Sampled:
        logits = self._compute_logits(hidden[self._to_device(inputs.last_tokens)])
        raw = self.logit_changes.change(logits, inputs, masks)
        step = StepLogits(logits, sampling_batch(self._batch, inputs, self._to_device), raw)
        if drafts is None:
            sampled = sample(logits, step.parameters)
        else:
            drawn_from = None if proposed is None else self._to_device(proposed)
            sampled = sample_or_verify(logits, step.parameters, self._to_device(drafts.astype(np.int64)), drawn_from)
        logprobs = sampled_logprobs(step, sampled, inputs.sample_rows, self._batch.sampling)
        return Sampled(sampled.cpu().numpy().astype(np.int32), logprobs)

    @torch.inference_mode()
    def draw(self, hidden: Tensor, inputs: StepInputs, *, with_probs: bool) -> tuple[Int32s, Float32s | None]:
        """See `DraftSampler.draw`."""
        logits = self._compute_logits(hidden[self._to_device(inputs.last_tokens)])
        rows, positions = inputs.sample_rows, inputs.sample_positions
        return draw_tokens(logits, self._batch, rows, positions, self._to_device, with_probs=with_probs)

    @torch.inference_mode()
    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        return prompt_logprobs(pieces, hidden, self._compute_logits, self._vocab_size)

    def _apply_masks(self, logits: Tensor, rows: Int64s, words: Int32s) -> None:
        is_allowed = allowed_tokens(words, self._vocab_size)
        apply_token_mask(logits, self._to_device(rows), self._to_device(is_allowed))

    def _to_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def draw_tokens(
    logits: Tensor, batch: InputBatch, rows: Int32s, positions: Int32s, place: Place, *, with_probs: bool
) -> tuple[Int32s, Float32s | None]:
    """As `DraftSampler.draw`, for the tokens at `positions` of `rows`, int32 [k]. logits: float32 [k, vocab]."""
    parameters = parameters_of(batch, rows, positions, place)
    token_ids = sample(logits, parameters).cpu().numpy().astype(np.int32)
    if not with_probs:
        return token_ids, None
    processed = logits if parameters is None else processed_logits(logits, parameters)
    return token_ids, processed.softmax(dim=1).cpu().numpy()
