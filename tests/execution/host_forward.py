"""A forward pass in torch under the sampler that works on numpy's arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.execution.host_sampler import HostSampler
from callboard.execution.input_batch import InputBatch
from callboard.execution.prepare_inputs import StepInputs
from callboard.execution.torch_forward import TorchForward


class HostForward(TorchForward):
    """Hands out arrays, float32."""

    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> np.ndarray:
        return super().hidden_states(inputs, batch).float().numpy()

    def make_sampler(self, batch: InputBatch) -> HostSampler:
        return HostSampler(self._compute_logits, batch, self.shape.vocab_size)

    def _compute_logits(self, hidden: np.ndarray) -> np.ndarray:
        return self.compute_logits(torch.from_numpy(hidden)).numpy().copy()


both_samplers = pytest.mark.parametrize("forward_kind", [TorchForward, HostForward], ids=["torch", "host"])
