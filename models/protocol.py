"""The two seams of this floor: what a model asks of the worker (attention) and what a worker asks of a model."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape


class Attention(Protocol):
    """Attention over the paged cache for the tokens of one step; the worker hands one in with every step."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this step's keys and values into the cache of `layer` and attend to it.

        q: [num_tokens, num_heads, head_dim], k and v: [num_tokens, num_kv_heads, head_dim], in the model's dtype, on
        its device; rotary embedding is applied. They are views; the last two axes are dense.
        Returns [num_tokens, num_heads * head_dim] in the model's dtype.
        """
        ...


class CausalLM(Protocol):
    """A decoder-only language model with its weights on one device. Call it under `torch.inference_mode()`."""

    @property
    def shape(self) -> ModelShape:
        """Of the whole model."""
        ...

    @property
    def local_shape(self) -> ModelShape:
        """Of what is here: a rank's share of heads, intermediate size and vocabulary, or the whole."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, keys and values."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def num_weight_bytes(self) -> int:
        """Bytes that weights and tables hold on the device; may exceed parameters times dtype (see `Linear`)."""
        ...

    def forward(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, hidden: Tensor | None = None
    ) -> Tensor:
        """Run all layers over the tokens of a step; of a stage its own, over the `hidden` states of the one before.

        token_ids, positions: int64 [num_tokens], positions below the model's max_model_len.
        Returns hidden states after the final norm: [num_tokens, hidden_size] in the dtype that `compute_logits` takes
        (float32 where the CPU has no bfloat16 arithmetic). Of a stage before the last: what the next one takes.
        """
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [k, hidden_size], rows of `forward`'s result. Returns float32 [k, vocab_size]; [k, 0] on a rank that
        does not sample."""
        ...
