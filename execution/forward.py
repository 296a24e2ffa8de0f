"""A model's forward pass as the runner calls it: its KV cache, hidden states of a prepared step, its sampler."""

from __future__ import annotations

from typing import Protocol

from ..checkpoints.shape import ModelShape
from .input_batch import InputBatch
from .prepare_inputs import StepInputs
from .sampler import Array, Sampler


class KVCache(Protocol):
    """Keys and values of all layers."""

    @property
    def block_size(self) -> int: ...


class Forward(Protocol):
    """Arrays are of the kind, and on the device, that its sampler takes."""

    @property
    def shape(self) -> ModelShape: ...

    @property
    def kv(self) -> KVCache: ...

    @property
    def num_weight_bytes(self) -> int: ...

    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Array:
        """[t, hidden_size], valid until the next call; keys and values of the step are written."""
        ...

    def make_sampler(self, batch: InputBatch) -> Sampler:
        """Of this model, for the rows of a batch."""
        ...
