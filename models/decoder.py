"""What the decoder-only families have in common: weights, tables, sizes. A family adds its forward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from .decoder_weights import Weights
from .linear import Linear, compute_dtype
from .protocol import Attention, CausalLM
from .rotary_tables import rotary_tables

Forward = Callable[["Decoder", Tensor, Tensor, Attention], Tensor]
"""(model, token_ids, positions, attention) -> hidden states, as `CausalLM.forward`."""


class Decoder(CausalLM):
    """A model on one device: `dtype` is that of queries, keys and values, `compute_dtype` that of all between."""

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype,
        weights: Weights[Tensor, Linear, Tensor],
        forward: Forward,
        max_model_len: int,
    ) -> None:
        self._shape, self._dtype, self._device = shape, dtype, weights.embedding.device
        self._forward = forward
        self.compute_dtype = compute_dtype(dtype, self._device)
        self.weights = weights
        self.eps = torch.tensor(shape.rms_norm_eps, device=self._device)
        self.rotary_tables = tuple(
            torch.from_numpy(table).unsqueeze(2).to(self._device, self.compute_dtype)
            for table in rotary_tables(shape, max_model_len)
        )
        """Each [max_model_len, 2, 1, head_dim]."""

    @property
    def shape(self) -> ModelShape:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def num_weight_bytes(self) -> int:
        weights = self.weights
        tensors = [weights.embedding, *weights.vectors(), *self.rotary_tables]
        matrices = [weights.head, *weights.matrices()]
        return sum(tensor.nbytes for tensor in tensors) + sum(matrix.num_bytes for matrix in matrices)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """int64 [num_tokens] each -> [num_tokens, hidden_size] of compute_dtype, after the final norm."""
        return self._forward(self, token_ids, positions, attention)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[k, hidden_size] of compute_dtype -> float32 [k, vocab_size]."""
        return self.weights.head(hidden).float()
