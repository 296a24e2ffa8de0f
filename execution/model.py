"""What the runner needs of a model, by structure alone."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape


class StepAttention(Protocol):
    """Attention of one step: writes the step's keys and values into the cache, then attends."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [n, num_heads, head_dim]; k, v: [n, kv_heads, head_dim]. Returns [n, num_heads * head_dim]."""
        ...


class RunnableModel(Protocol):
    """A causal language model over a flat list of tokens from many rows."""

    @property
    def shape(self) -> ModelShape: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def forward(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """token_ids, positions: int64 [n]. Returns [n, hidden_size]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [k, hidden_size]. Returns float32 [k, vocab_size]."""
        ...
