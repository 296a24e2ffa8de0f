"""Sampling in torch, on the model's device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..kernels.sampling import SamplingBatch, sample
from ..mailbox.messages.steps import PromptLogprobs, StepPlan
from .input_batch import InputBatch
from .logit_changes import LogitChanges
from .prepare_inputs import StepInputs
from .prompt_logprobs import prompt_logprobs
from .prompt_pieces import PromptPieces
from .sampled_logprobs import StepLogits, sampled_logprobs
from .sampler import Sampled


class TorchSampler:
    """`compute_logits`: [k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""

    def __init__(
        self, compute_logits: Callable[[Tensor], Tensor], batch: InputBatch, vocab_size: int, device: torch.device
    ) -> None:
        self._compute_logits, self._batch, self._device = compute_logits, batch, device
        self._vocab_size = vocab_size
        self.logit_changes = LogitChanges(batch, vocab_size, self._to_device)

    def apply(self, plan: StepPlan) -> None:
        self.logit_changes.apply(plan)

    def clear(self) -> None:
        self.logit_changes.clear()

    @torch.inference_mode()
    def sample(self, hidden: Tensor, inputs: StepInputs) -> Sampled:
        logits = self._compute_logits(hidden[self._to_device(inputs.last_tokens)])
        step = StepLogits(logits, self._sampling_batch(inputs), self.logit_changes.change(logits, inputs))
        sampled = sample(logits, step.parameters)
        logprobs = sampled_logprobs(step, sampled, inputs.sample_rows, self._batch.sampling)
        return Sampled(sampled.cpu().numpy().astype(np.int32), logprobs)

    @torch.inference_mode()
    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        return prompt_logprobs(pieces, hidden, self._compute_logits, self._vocab_size)

    def _sampling_batch(self, inputs: StepInputs) -> SamplingBatch | None:
        """Parameters of the rows that sample; None if all are greedy."""
        arrays, rows = self._batch.sampling, inputs.sample_rows
        temperature = arrays.temperature[rows]
        if not temperature.any():
            return None
        return SamplingBatch(
            temperature=self._to_device(temperature),
            top_k=self._to_device(arrays.top_k[rows]),
            top_p=self._to_device(arrays.top_p[rows]),
            min_p=self._to_device(arrays.min_p[rows]),
            seeds=self._to_device(arrays.seed[rows].view(np.int64)),
            indexes=self._to_device((inputs.sample_positions - self._batch.index_origins[rows]).astype(np.int64)),
            choices=self._to_device(arrays.choice[rows]),
        )

    def _to_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
