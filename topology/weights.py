"""What a loaded model holds, from its shape: weights as the device packs them, and the rotary tables."""

from __future__ import annotations

from math import prod

from ..checkpoints.llama_weights import EMBEDDING, HEAD
from ..checkpoints.model_weights import held_weights
from ..checkpoints.shape import ModelShape
from .arithmetic import Arithmetic

_NORM_BYTES = 4
"""Norms are float32, whatever the model's dtype."""


def weight_bytes_of(shape: ModelShape, arithmetic: Arithmetic, max_model_len: int) -> int:
    """Embedding, matrices, vectors, and cosines and sines of `max_model_len` positions."""
    sizes = held_weights(shape)
    embedding = sizes.pop(EMBEDDING)
    if shape.tie_word_embeddings and arithmetic.is_head_copied:
        sizes[HEAD] = embedding
    num_bytes = prod(embedding) * arithmetic.dtype_bytes
    for (_, name), (rows, *columns) in sizes.items():
        if columns:
            num_bytes += rows * _filled(columns[0], arithmetic) * arithmetic.matrix_bytes
        else:
            num_bytes += rows * (_NORM_BYTES if name.endswith("norm.weight") else arithmetic.compute_bytes)
    table_elements = shape.num_rotary_tables * 2 * max_model_len * shape.head_dim
    return num_bytes + table_elements * arithmetic.compute_bytes


def _filled(columns: int, arithmetic: Arithmetic) -> int:
    return -(-columns // arithmetic.matrix_columns) * arithmetic.matrix_columns
