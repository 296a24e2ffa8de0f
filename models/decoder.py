"""What the decoder-only families have in common: weights, tables, sizes. A family adds its forward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoints.shape import ModelShape
from .decoder_weights import Weights
from .linear import Linear, compute_dtype
from .norms import rms_norm
from .place import Place
from .protocol import Attention, CausalLM
from .rotary_tables import rotary_tables

Forward = Callable[["Decoder", Tensor, Tensor, Attention, Tensor | None], Tensor]
"""(model, token_ids, positions, attention, hidden) -> hidden states, as `CausalLM.forward`."""


class Decoder(CausalLM):
    """A model on one device: `dtype` is that of queries, keys and values, `compute_dtype` that of all between."""

    def __init__(
        self,
        shape: ModelShape,
        dtype: torch.dtype,
        weights: Weights[Tensor, Linear, Tensor],
        forward: Forward,
        max_model_len: int,
        place: Place | None = None,
    ) -> None:
        """shape: of the weights; place: if they are a rank's share of a model."""
        self._local_shape, self._dtype, self._device = shape, dtype, weights.embedding.device
        place = Place(shape, None, None) if place is None else place
        self._shape, self._parallel, self._stage = place.shape, place.parallel, place.stage
        self._forward = forward
        self.compute_dtype = compute_dtype(dtype, self._device)
        self.weights = weights
        self.eps = torch.tensor(shape.rms_norm_eps, device=self._device)
        self.rotary_tables = tuple(
            torch.from_numpy(table).unsqueeze(2).to(self._device, self.compute_dtype)
            for table in rotary_tables(shape, max_model_len)
        )
        """Each [max_model_len, 2, 1, head_dim]."""
        self.taps: tuple[int, ...] = ()
        """Layers in front of which somebody wants the hidden states."""
        self.tapped: dict[int, Tensor] = {}
        """Those of the last step: layer -> [num_tokens, hidden_size]."""

    @property
    def shape(self) -> ModelShape:
        return self._shape

    @property
    def local_shape(self) -> ModelShape:
        return self._local_shape

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

    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, hidden: Tensor | None = None
    ) -> Tensor:
        """int64 [num_tokens] each -> [num_tokens, hidden_size] of compute_dtype, after the final norm; of a stage that
        is not the last behind its layers. hidden: of the stage before."""
        return self._forward(self, token_ids, positions, attention, hidden)

    def tap(self, layer: int, hidden: Tensor) -> None:
        """A forward pass has come to this layer with these hidden states, which it will change."""
        if layer in self.taps:
            self.tapped[layer] = hidden.clone()

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[k, hidden_size] of compute_dtype -> float32 [k, vocab_size]; [k, 0] on ranks that do not sample."""
        logits = self.weights.head(hidden).float()
        return logits if self._parallel is None else self._parallel.gather_logits(logits)

    # For the family's forward pass

    def embed(self, token_ids: Tensor) -> Tensor:
        """int64 [num_tokens] -> [num_tokens, hidden_size] of dtype."""
        if self._parallel is None:
            return F.embedding(token_ids, self.weights.embedding)
        return self._parallel.embed(token_ids, self.weights.embedding)

    def end(self, hidden: Tensor) -> Tensor:
        """Hidden states behind all layers here: with the final norm, if no stage follows."""
        if self._stage is not None and not self._stage.is_last:
            return hidden
        return rms_norm(hidden, self.weights.final_norm, self.eps)

    def sum_over_ranks(self, partial: Tensor) -> Tensor:
        """What a matrix that is cut by columns made of this rank's part -> the whole product. Not to be used after:
        `partial`."""
        return partial if self._parallel is None else self._parallel.sum_of(partial)
