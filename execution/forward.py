"""A model's forward pass as the runner calls it: its KV cache, and hidden states and logits of a prepared step."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..models.protocol import CausalLM
from .attention import PagedAttention
from .input_batch import InputBatch
from .kv_tensors import KVTensors
from .prepare_inputs import StepInputs


class KVCache(Protocol):
    """Keys and values of all layers."""

    @property
    def tensor(self) -> Tensor: ...

    @property
    def block_size(self) -> int: ...


class Forward(Protocol):
    """Call it under `torch.inference_mode()`; tensors are on `device`."""

    @property
    def shape(self) -> ModelShape: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def kv(self) -> KVCache: ...

    @property
    def num_weight_bytes(self) -> int: ...

    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Tensor:
        """[t, hidden_size], valid until the next call; keys and values of the step are written."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[k, hidden_size] -> float32 [k, vocab_size], valid until the next call."""
        ...


class TorchForward:
    """Layer by layer in torch."""

    def __init__(self, model: CausalLM, *, num_blocks: int, block_size: int, kv_dtype: torch.dtype) -> None:
        self.model = model
        self.kv = KVTensors(model.shape, num_blocks, block_size, kv_dtype, model.device)
        self.shape, self.device = model.shape, model.device

    @property
    def num_weight_bytes(self) -> int:
        return self.model.num_weight_bytes

    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Tensor:
        model = self.model
        attention = PagedAttention(self.kv, inputs, batch, model.shape, model.dtype)
        token_ids, positions = (
            torch.from_numpy(array).to(self.device) for array in (inputs.token_ids, inputs.positions)
        )
        return model.forward(token_ids, positions, attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.model.compute_logits(hidden)
