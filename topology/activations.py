"""What a worker holds beside weights and KV while it computes its largest step, tensor by tensor.

The largest step has `max_num_batched_tokens` tokens (t): a row that decodes in all rows but one, and in that one a chunk
of a prompt that ends at `max_model_len`. It passes its peak in one of these moments (execution/, models/llama.py):

- *masks*: the chunk's attention mask is made;
- *mlp*: in a layer behind the first, gate and up have just been computed, while those of the layer before still live;
- *attention*: keys and values of the cache are gathered, queries and outputs put in order;
- *sampling*: of the step's hidden states only those behind the last norm are left, and each row has its logits.

Rows of one class of length are padded to the longest: with chunks of several rows masks may be larger, at most twice.
"""

from __future__ import annotations

import msgspec

from ..checkpoints.shape import ModelShape
from .arithmetic import Arithmetic

GROUP_ELEMENTS = 1 << 25
"""Gathered keys and values of rows that attend together; more rows are cut into groups (execution/attention.py)."""
_SAMPLING_BYTES = 168
"""A logit and all that is made of it where filters keep it: sorted candidates, their ids, noise (kernels/sampling.py)."""
_INDEX_SCRATCH = 4
"""Float32 or int32 arrays as long as the index of a group: scores, weights, and what torch copies of the pattern."""


class StepLimits(msgspec.Struct, frozen=True):
    """What bounds a step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    pool_tokens: int
    """Tokens that the KV pool can hold: rows together see no more, shared prefixes apart."""


def activation_bytes_of(shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits) -> int:
    """The peak, with the arrays of the batch that live from step to step."""
    step = _Step(shape, arithmetic, limits)
    return step.batch() + max(step.masks(), step.mlp(), step.attention(), step.sampling())


class _Step:
    def __init__(self, shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits) -> None:
        self._shape, self._arithmetic, self._limits = shape, arithmetic, limits
        self._query = shape.num_heads * shape.head_dim
        self._key_value = 2 * shape.num_kv_heads * shape.head_dim
        self._tokens = limits.max_num_batched_tokens
        self._decodes = min(limits.max_num_seqs, self._tokens) - 1
        self._chunk = min(self._tokens - self._decodes, limits.max_model_len)
        self._length = min(limits.max_model_len, limits.pool_tokens)
        self._seen = min(self._decodes * self._length, limits.pool_tokens)
        """Tokens that the decoding rows see together."""

    def batch(self) -> int:
        """Tokens and block tables of all rows, int32."""
        length = self._limits.max_model_len
        return 4 * self._limits.max_num_seqs * (length + 1 - (-length // self._limits.block_size))

    def masks(self) -> int:
        """What all layers share while it is made: as numbers, and as two arrays of truth values."""
        return self._shared() + 2 * self._mask_elements()

    def mlp(self) -> int:
        shape, wide = self._shape, self._arithmetic.compute_bytes
        gate_up = 2 * shape.intermediate_size
        beside = gate_up if shape.num_layers > 1 else shape.intermediate_size  # of the layer before, or the product
        new = wide * (shape.hidden_size + gate_up + beside)
        return self._shared() + self._tokens * (self._held() + new)

    def attention(self) -> int:
        """Queries are put in order, attended, and put back: four arrays of their size, the output among them."""
        arithmetic, shape = self._arithmetic, self._shape
        narrow = arithmetic.dtype_bytes
        gate_up = 2 * shape.intermediate_size * arithmetic.compute_bytes if shape.num_layers > 1 else 0
        tokens = self._tokens * (self._held() + gate_up + narrow * (4 * self._query + self._key_value // 2))
        return self._shared() + tokens + self._group_scratch()

    def sampling(self) -> int:
        shape, limits = self._shape, self._limits
        rows = min(limits.max_num_seqs, self._tokens)
        hidden = self._arithmetic.compute_bytes * shape.hidden_size * (self._tokens + rows)
        return hidden + rows * shape.vocab_size * _SAMPLING_BYTES

    def _held(self) -> int:
        """Bytes of a token that live through a layer: hidden state, cosines and sines, q/k/v as computed and rotated,
        attention's output."""
        shape, arithmetic = self._shape, self._arithmetic
        wide = shape.hidden_size + 2 * shape.head_dim + self._query + self._key_value
        narrow = 2 * self._query + self._key_value // 2
        return arithmetic.compute_bytes * wide + arithmetic.dtype_bytes * narrow

    def _mask_elements(self) -> int:
        return self._chunk * self._length if self._chunk < self._length else 0

    def _shared(self) -> int:
        """What all layers share: the chunk's mask and slots, the decoding rows' slots or index, and their mask."""
        arithmetic = self._arithmetic
        a_token = arithmetic.dtype_bytes + 8
        if arithmetic.reads_kv_in_place:
            a_token = arithmetic.dtype_bytes + 8 * self._shape.num_heads  # index and pattern, four bytes each
        return self._mask_elements() * arithmetic.dtype_bytes + 8 * self._length + self._seen * a_token

    def _group_scratch(self) -> int:
        """The larger of a decoding group's and the chunk's."""
        arithmetic = self._arithmetic
        converted = arithmetic.dtype_bytes if arithmetic.kv_dtype_bytes != arithmetic.dtype_bytes else 0
        gathered = self._key_value * (arithmetic.kv_dtype_bytes + converted)
        chunk = self._length * gathered
        grouped = min(self._seen, max(GROUP_ELEMENTS // self._key_value, self._length))
        if arithmetic.reads_kv_in_place:
            return max(chunk, grouped * 4 * _INDEX_SCRATCH * self._shape.num_heads)
        return max(chunk, grouped * gathered)
