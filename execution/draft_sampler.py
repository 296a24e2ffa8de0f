"""What a forward pass and its sampler do for drafts, beside what `forward` and `sampler` say."""

from __future__ import annotations

from typing import Protocol

from .forward import KVCache
from .input_batch import InputBatch, Int32s
from .prepare_inputs import StepInputs
from .sampler import Array
from .token_counts import Float32s


class DraftSampler(Protocol):
    """Draws drafts for the rows of a batch."""

    def draw(self, hidden: Array, inputs: StepInputs, *, with_probs: bool) -> tuple[Int32s, Float32s | None]:
        """Tokens of the k rows that sample, int32 [k], with their temperature, filters and noise, but nothing else that
        requests ask for; and, if wanted, float32 [k, vocab]: the distribution that each was drawn from (of a greedy row
        anything)."""
        ...


class DraftForward(Protocol):
    """As `Forward`, of a model that drafts."""

    @property
    def kv(self) -> KVCache: ...

    @property
    def num_weight_bytes(self) -> int: ...

    def hidden_states(self, inputs: StepInputs, batch: InputBatch) -> Array: ...

    def make_sampler(self, batch: InputBatch) -> DraftSampler: ...
