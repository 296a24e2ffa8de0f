"""What a loaded model holds, from its shape: weights as the device packs them, and the rotary table."""

from __future__ import annotations

from math import prod

from ..checkpoints.llama_weights import EMBEDDING, HEAD, llama_weights
from ..checkpoints.shape import ModelShape
from .arithmetic import Arithmetic


def weight_bytes_of(shape: ModelShape, arithmetic: Arithmetic, max_model_len: int) -> int:
    """Embedding, matrices, vectors, and cosines and sines of `max_model_len` positions."""
    sizes = dict(llama_weights(shape))
    embedding = sizes.pop(EMBEDDING)
    if shape.tie_word_embeddings and arithmetic.is_head_copied:
        sizes[HEAD] = embedding
    matrices = sum(rows * _filled(columns[0], arithmetic) for rows, *columns in sizes.values() if columns)
    numbers = sum(prod(size) for size in sizes.values() if len(size) == 1) + 2 * max_model_len * shape.head_dim
    return (
        prod(embedding) * arithmetic.dtype_bytes
        + matrices * arithmetic.matrix_bytes
        + numbers * arithmetic.compute_bytes
    )


def _filled(columns: int, arithmetic: Arithmetic) -> int:
    return -(-columns // arithmetic.matrix_columns) * arithmetic.matrix_columns
