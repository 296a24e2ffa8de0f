"""What a worker holds beside weights and KV while it computes its largest step, tensor by tensor.

The largest step has `max_num_batched_tokens` tokens: every row but one decodes a token, and that one has the last chunk
of a prompt of `max_model_len`. It passes its peak in one of these moments (execution/, models/llama.py):

- *masks*: the chunk's attention mask is made;
- *rotation*: queries and keys are turned, while those of the layer before, and its gate and up, still live;
- *chunk*, *decode*: the cache is read for the chunk, or for a group of decoding rows;
- *mlp*: in a layer behind the first, gate and up have just been computed, while those of the layer before still live;
- *prompt*: of the step's hidden states only those behind the last norm are left, and a part of a prompt has its logits;
- *sampling*: so has each row, and some of them are sampled from.

Rows are padded to the longest of their class, a power of two. For decoding rows that is foreseen here; chunks of
several rows in one step can have masks of up to twice the size.
"""

from __future__ import annotations

import msgspec

from ..checkpoints.model_weights import has_head_norms
from ..checkpoints.shape import ModelShape
from .arithmetic import Arithmetic
from .views import views_of

GROUP_ELEMENTS = 1 << 25
"""Gathered keys and values of rows that attend together; more rows are cut into groups (execution/attention.py)."""
SAMPLED_LOGITS = 1 << 19
"""Logits that are sampled from at a time, in whole rows (kernels/sampling.py)."""
PROMPT_LOGITS = 1 << 21
"""Logits of prompts that are made at a time, in whole rows (execution/prompt_logprobs.py)."""
_LOGIT_BYTES = 8
"""A row's own logit, and the one that bias, masks and penalties make of it."""
_CANDIDATE_BYTES, _WAITING_BYTES = 76, 17
"""All that is made of a logit that filters keep: sorted candidates, ids, seeds, noise; and what is kept of the next
rows before that."""
_NOISY_TOKENS, _NOISE_BYTES = 1 << 14, 108
"""Tokens whose noise is made at a time (kernels/philox.py), and what that takes of each beside."""
_COUNT_BYTES = 12
"""A distinct token of a row with penalties, its count, and either once more while a token is put between."""
_PROMPT_LOGIT_BYTES = 9
"""A logit, its log-probability, and whether it is above that of the token in the prompt."""
_PROMPT_TOKEN_BYTES = 2 * 168
"""What a result has of a prompt's token with 20 alternatives: as arrays, and as the bytes that are sent."""
_INDEX_SCRATCH = 3
"""Float32 or int32 arrays as long as the index of a group: what torch copies of the pattern, scores, weights."""
_SHORT_LENGTH = 512
"""Rows up to this KV length are of one class (execution/attention.py)."""
_THREAD_BYTES = 4 * 64 * 512
"""Scores that a thread computes at a time, as torch's fused attention cuts a chunk of some hundreds of tokens."""


class StepLimits(msgspec.Struct, frozen=True):
    """What bounds a step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    pool_tokens: int
    """Tokens that the KV pool can hold: rows together see no more, shared prefixes apart."""
    num_threads: int
    """Compute threads of the worker."""


def activation_bytes_of(shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits) -> int:
    """The peak, with the arrays of the batch that live from step to step."""
    return max(moments_of(shape, arithmetic, limits).values())


def batch_and_sampling_bytes_of(shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits) -> int:
    """Of a step whose forward pass has buffers of its own, those of logits among them: the rest."""
    step = _Step(shape, arithmetic, limits)
    return step.batch() + max(step.prompt(), step.sampling())


def moments_of(shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits) -> dict[str, int]:
    """Bytes at each moment at which the peak may be."""
    step = _Step(shape, arithmetic, limits)
    moments = (step.masks, step.rotation, step.chunk, step.decode, step.mlp, step.prompt, step.sampling)
    return {moment.__name__: step.batch() + moment() for moment in moments}


class _Step:
    def __init__(self, shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits) -> None:
        self._shape, self._arithmetic, self._limits = shape, arithmetic, limits
        self._query = shape.num_heads * shape.head_dim
        self._key_value = 2 * shape.num_kv_heads * shape.head_dim
        self._tokens = limits.max_num_batched_tokens
        self._decodes = min(limits.max_num_seqs, self._tokens) - 1
        self._chunk = min(self._tokens - self._decodes, limits.max_model_len)
        self._length = min(limits.max_model_len, limits.pool_tokens)
        longest = max(2 * limits.pool_tokens, self._decodes * min(self._length, _SHORT_LENGTH))
        self._views = views_of(shape.windows, self._chunk, self._decodes, self._length, longest)

    def batch(self) -> int:
        """Tokens and block tables of all rows, int32, and the counts of their distinct tokens."""
        limits = self._limits
        length, rows = limits.max_model_len, limits.max_num_seqs
        distinct = min(rows * min(length, self._shape.vocab_size), limits.pool_tokens)
        return 4 * rows * (length + 1 - (-length // limits.block_size)) + _COUNT_BYTES * distinct

    def masks(self) -> int:
        """The mask, and it and its opposite as truth values."""
        return self._shared() + 2 * max(view.mask_elements for view in self._views)

    def rotation(self) -> int:
        """Two products and their sum, and in some families what the norms of heads made."""
        num_arrays = 4 if has_head_norms(self._shape) else 3
        turned = self._arithmetic.compute_bytes * num_arrays * (self._query + self._key_value // 2)
        return self._shared() + self._tokens * (self._held() + self._earlier() + turned)

    def chunk(self) -> int:
        """Queries put in order, their output, that of the step, and the keys and values of one row."""
        ordered = self._values() + 3 * self._query * self._arithmetic.dtype_bytes
        num_keys = max(view.chunk_keys for view in self._views)
        scratch = num_keys * self._gathered_bytes() + _THREAD_BYTES * self._limits.num_threads
        return self._shared() + self._tokens * (self._held() + self._earlier() + ordered) + scratch

    def decode(self) -> int:
        """The output of the step, and what one group of rows reads."""
        arithmetic = self._arithmetic
        output = self._values() + self._query * arithmetic.dtype_bytes
        grouped = min(max(view.seen for view in self._views), max(GROUP_ELEMENTS // self._key_value, self._length))
        a_token = self._gathered_bytes()
        if arithmetic.reads_kv_in_place:
            a_token = 4 * _INDEX_SCRATCH * self._shape.num_heads
        return self._shared() + self._tokens * (self._held() + self._earlier() + output) + grouped * a_token

    def mlp(self) -> int:
        shape, wide = self._shape, self._arithmetic.compute_bytes
        beside = self._earlier() if shape.num_layers > 1 else wide * shape.intermediate_size  # or the product
        new = wide * (shape.hidden_size + 2 * shape.intermediate_size)
        return self._shared() + self._tokens * (self._held() + beside + new)

    def prompt(self) -> int:
        """A part of a prompt in the step."""
        vocab_size = self._shape.vocab_size
        rows = min(self._tokens, max(1, PROMPT_LOGITS // vocab_size))
        logits = rows * vocab_size * _PROMPT_LOGIT_BYTES
        return self._hidden(rows) + self._tokens * _PROMPT_TOKEN_BYTES + logits

    def sampling(self) -> int:
        """Every row's logits, and what filters that keep them all make of some."""
        rows, vocab_size = min(self._limits.max_num_seqs, self._tokens), self._shape.vocab_size
        at_once = max(1, SAMPLED_LOGITS // vocab_size) * vocab_size
        logits = rows * vocab_size
        first = min(logits, at_once)
        waiting = min(logits - first, at_once)
        made = _CANDIDATE_BYTES * first + _WAITING_BYTES * waiting + _NOISE_BYTES * min(first, _NOISY_TOKENS)
        return self._hidden(rows) + _LOGIT_BYTES * logits + made

    def _hidden(self, rows: int) -> int:
        """Of all tokens, and the rows that get logits once more."""
        return self._arithmetic.compute_bytes * self._shape.hidden_size * (self._tokens + rows)

    def _held(self) -> int:
        """Bytes of a token that live through a layer: hidden state, cosines and sines, q/k/v as computed and rotated,
        attention's output."""
        shape, arithmetic = self._shape, self._arithmetic
        wide = shape.hidden_size + 2 * shape.head_dim * shape.num_rotary_tables + self._query + self._key_value
        narrow = 2 * self._query + self._key_value // 2
        return arithmetic.compute_bytes * wide + arithmetic.dtype_bytes * narrow

    def _earlier(self) -> int:
        """Bytes of a token in gate and up of the layer before."""
        shape = self._shape
        return 2 * shape.intermediate_size * self._arithmetic.compute_bytes if shape.num_layers > 1 else 0

    def _values(self) -> int:
        """Bytes of a token's values in the model's dtype, where they are not of it already."""
        arithmetic = self._arithmetic
        is_converted = arithmetic.compute_bytes != arithmetic.dtype_bytes
        return arithmetic.dtype_bytes * (self._key_value // 2) if is_converted else 0

    def _shared(self) -> int:
        """What all layers of a window share: the chunk's mask and slots, the decoding rows' slots or index, and their
        mask."""
        arithmetic = self._arithmetic
        a_token = arithmetic.dtype_bytes + 8
        if arithmetic.reads_kv_in_place:
            a_token = arithmetic.dtype_bytes + 8 * self._shape.num_heads  # index and pattern, four bytes each
        return sum(
            view.mask_elements * arithmetic.dtype_bytes + 8 * view.chunk_keys + view.seen * a_token
            for view in self._views
        )

    def _gathered_bytes(self) -> int:
        """Of a token's keys and values, copied out of the cache, and once more where the model's dtype is another."""
        arithmetic = self._arithmetic
        converted = arithmetic.dtype_bytes if arithmetic.kv_dtype_bytes != arithmetic.dtype_bytes else 0
        return self._key_value * (arithmetic.kv_dtype_bytes + converted)
