"""A model's forward pass layer by layer in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.protocol import CausalLM
from .attention import PagedAttention
from .input_batch import InputBatch
from .kv_tensors import KVTensors
from .prepare_inputs import StepInputs
from .torch_sampler import TorchSampler


class TorchForward:
    """Of a model on its device."""

    def __init__(self, model: CausalLM, *, num_blocks: int, block_size: int, kv_dtype: torch.dtype) -> None:
        self.model = model
        self.kv = KVTensors(model.local_shape, num_blocks, block_size, kv_dtype, model.device)
        self.shape, self.device = model.shape, model.device

    @property
    def num_weight_bytes(self) -> int:
        return self.model.num_weight_bytes

    def make_sampler(self, batch: InputBatch) -> TorchSampler:
        return TorchSampler(self.compute_logits, batch, self.shape.vocab_size, self.device)

    @torch.inference_mode()
    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Tensor:
        model = self.model
        attention = PagedAttention(self.kv, inputs, batch, model.local_shape, model.dtype)
        token_ids, positions = (
            torch.from_numpy(array).to(self.device) for array in (inputs.token_ids, inputs.positions)
        )
        return model.forward(token_ids, positions, attention)

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""
        return self.model.compute_logits(hidden)
