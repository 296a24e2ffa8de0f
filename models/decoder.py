"""What the decoder-only families have in common: weights, tables, sizes. A family adds its forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from .decoder_weights import Stacks, TensorForm, Weights, gather_weights, planned_weight_bytes, tensor_shapes
from .linear import Linear, compute_dtype
from .parts import RowsOfPiece
from .protocol import Attention, CausalLM
from .rotary import rotary_tables

Forward = Callable[["Decoder", Tensor, Tensor, Attention], Tensor]
"""(model, token_ids, positions, attention) -> hidden states, as `CausalLM.forward`."""


class Decoder(CausalLM):
    """A model on one device: `dtype` is that of queries, keys and values, `compute_dtype` that of all between."""

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype,
        weights: Weights[Tensor, Linear],
        forward: Forward,
        max_model_len: int,
    ) -> None:
        self._shape, self._dtype, self._device = shape, dtype, weights.embedding.device
        self._forward = forward
        self.compute_dtype = compute_dtype(dtype, self._device)
        self.weights = weights
        self.eps = torch.tensor(shape.rms_norm_eps, device=self._device)
        self.rotary_tables = tuple(
            table.to(self._device, self.compute_dtype) for table in rotary_tables(shape, max_model_len)
        )

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


@dataclass(frozen=True)
class Family:
    """How the models of a family are built: they name their tensors, then take them piece by piece."""

    forward: Forward
    stacks: Stacks
    norm_offset: float = 0.0
    """What norms add to the weights that are stored."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the gate."""
    is_embedding_scaled: bool = False
    """By sqrt(hidden_size)."""

    def tensor_shapes(self, shape: ModelShape) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every tensor that the model is made of."""
        return tensor_shapes(shape)

    def planned_bytes(self, shape: ModelShape, dtype: torch.dtype, device: torch.device, max_model_len: int) -> int:
        """Bytes that the loaded model will hold on the device (its `num_weight_bytes`).

        The ledger, which knows no torch, estimates them (`topology.plan`); a test holds the two together.
        """
        table_elements = shape.num_rotary_tables * max_model_len * 2 * shape.head_dim
        return planned_weight_bytes(shape, dtype, device) + table_elements * compute_dtype(dtype, device).itemsize

    def from_pieces(
        self,
        shape: ModelShape,
        pieces: Iterator[tuple[str, int, RowsOfPiece]],
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
    ) -> CausalLM:
        """Build it from (canonical name, first row, rows): each row of each tensor of `tensor_shapes` once."""
        form = TensorForm(dtype, device)
        weights = gather_weights(shape, self.stacks, self.norm_offset, pieces, form, device)
        return Decoder(shape, dtype, weights, self.forward, max_model_len)
