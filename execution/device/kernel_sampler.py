"""Sampling by the GPU's kernels, as a device's steps call it."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.gpu.sampling import SamplingKind
from ...mailbox.messages.steps import PromptLogprobs, StepPlan
from ..input_batch import InputBatch, Int32s
from ..prepare_inputs import StepInputs
from ..prompt_pieces import PromptPieces
from ..sampler import Sampled
from ..token_masks import TokenMasks
from .device_sampler import DeviceSampler
from .staging import StagingRing
from .step_sampler import ComputeLogits, ReadLogprobs


class KernelStepSampler:
    """A `DeviceSampler`; what it cannot record it does with the host."""

    def __init__(
        self, compute_logits: ComputeLogits, batch: InputBatch, vocab_size: int, max_places: int, device: torch.device
    ) -> None:
        self._sampler = DeviceSampler(compute_logits, batch, vocab_size, max_places, device)
        self._batch = batch
        self.outputs: Tensor = self._sampler.outputs.everything

    def apply(self, plan: StepPlan) -> None:
        self._sampler.apply(plan)

    def clear(self) -> None:
        self._sampler.clear()

    def kind(self, rows: Int32s, positions: Int32s) -> Hashable | None:
        demands = self._sampler.demands
        return demands.kind(rows) if demands.is_recordable(rows, positions) else None

    def can_draft(self, rows: Int32s) -> NDArray[np.bool_]:
        return ~self._sampler.demands.has_changes[rows]  # counts of tokens are kept by row, not by place

    def place_masks(self, masks: TokenMasks, rows: Int32s, positions: Int32s, ring: StagingRing) -> None:
        self._sampler.place_masks(masks, rows, positions, ring)

    def launch(self, logits: Tensor, rows: Tensor, positions: Tensor, kind: Hashable) -> None:
        assert isinstance(kind, SamplingKind)
        self._sampler.launch(logits, rows, positions, kind)

    def logprob_reader(self, rows: Int32s) -> ReadLogprobs | None:
        return self._sampler.logprob_reader(rows) if self._batch.sampling.has_logprobs[rows].any() else None

    def warm_up(self, logits: Tensor) -> None:
        self._sampler.warm_up(logits)

    def sample(self, hidden: Tensor, inputs: StepInputs, masks: TokenMasks | None = None) -> Sampled:
        return self._sampler.sample(hidden, inputs, masks)

    def prompt_logprobs(self, pieces: PromptPieces, hidden: Tensor) -> PromptLogprobs:
        return self._sampler.prompt_logprobs(pieces, hidden)
