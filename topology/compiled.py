"""What a model in packed form holds: weights, and the buffers of the compiled step (models/compiled_decoder.py)."""

from __future__ import annotations

from collections.abc import Mapping

from ..checkpoints.model_weights import held_weights
from ..checkpoints.shape import ModelShape
from ..checkpoints.weight_formats import GROUP_COLUMNS, PANEL_ROWS, packed_bytes
from .activations import PROMPT_LOGITS, StepLimits

_FLOAT = 4
_TILE_QUERIES, _TILE_KEYS, _TILE_NORMS, _ADDRESS_BYTES = 128, 64, 3, 40
"""Of the attention kernel (kernels/cpu/attention.py), for each thread."""
_SMALLEST = 16


def packed_weight_bytes(shape: ModelShape, bits: Mapping[str, int], max_model_len: int) -> int:
    """Matrices as packed, a tied head with the embedding; vectors in float32, and so cosines and sines."""
    num_bytes = 0
    for (_, name), (rows, *columns) in held_weights(shape).items():
        if columns:
            num_bytes += packed_bytes(rows, columns[0], bits[name])
        else:
            num_bytes += _FLOAT * rows
    return num_bytes + _FLOAT * shape.num_rotary_tables * 2 * max_model_len * shape.head_dim


def compiled_buffer_bytes(shape: ModelShape, limits: StepLimits) -> int:
    """Of the largest step: a row for each token, logits, and each thread's tiles."""
    tokens = _capacity(limits.max_num_batched_tokens)
    query, heads = shape.num_heads * shape.head_dim, shape.num_heads + 2 * shape.num_kv_heads
    columns = max(shape.hidden_size, shape.intermediate_size, query)
    a_row = (_FLOAT + 2) * columns + 3 * _FLOAT * -(-columns // GROUP_COLUMNS)
    a_token = a_row + _FLOAT * (2 * shape.hidden_size + heads * shape.head_dim + 2 * shape.intermediate_size)
    prompt_rows = min(limits.max_num_batched_tokens, max(1, PROMPT_LOGITS // shape.vocab_size))
    logit_rows = _capacity(max(limits.max_num_seqs, prompt_rows))
    vocabulary = -(-shape.vocab_size // PANEL_ROWS) * PANEL_ROWS
    group = shape.num_heads // shape.num_kv_heads
    tiles = 2 * (_TILE_QUERIES + _TILE_KEYS) * shape.head_dim + _TILE_QUERIES * (_TILE_KEYS + _TILE_NORMS)
    scratch = _FLOAT * (group * (limits.max_model_len + _TILE_KEYS) + tiles) + _ADDRESS_BYTES
    return tokens * a_token + _FLOAT * logit_rows * vocabulary + limits.num_threads * scratch


def _capacity(num_rows: int) -> int:
    return max(_SMALLEST, 1 << (num_rows - 1).bit_length())
