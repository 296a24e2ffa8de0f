"""Tensors that llama.cpp's converter stores otherwise than Hugging Face does, put back as they were."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from ..checkpoints.shape import ModelShape
from ..kernels.cpu.quantized_rows import QuantizedRows
from .parts import RowsOfPiece, as_float32s
from .tensors import StoredTensor

R = TypeVar("R", bound=Any)

_INTERLEAVED = (".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias")
_NORM = "norm.weight"


def in_canonical_order(stored: StoredTensor, gguf_name: str, shape: ModelShape) -> StoredTensor:
    """`stored`, which reads rows as the file has them, as a tensor that gives Hugging Face's values in its order."""
    read_stored = stored.read_stored
    assert read_stored is not None, "of a GGUF file"
    if shape.architecture == "llama" and gguf_name.endswith(_INTERLEAVED):
        head_dim = shape.head_dim
        return stored._replace(
            row_group=head_dim,
            read_rows=lambda first, last: undo_interleaving(stored.read_rows(first, last), head_dim),
            read_stored=lambda first, last: _undo_in_all(read_stored(first, last), head_dim),
        )
    if shape.architecture == "gemma3" and gguf_name.endswith(_NORM):
        return stored._replace(
            read_rows=lambda first, last: stored.read_rows(first, last).float() - 1.0,
            read_stored=lambda first, last: as_float32s(read_stored(first, last)) - np.float32(1.0),
        )
    return stored


def _undo_in_all(rows: RowsOfPiece, head_dim: int) -> RowsOfPiece:
    if isinstance(rows, QuantizedRows):
        return QuantizedRows(
            undo_interleaving(rows.q, head_dim),
            undo_interleaving(rows.d, head_dim),
            undo_interleaving(rows.m, head_dim),
        )
    return undo_interleaving(rows, head_dim)


def undo_interleaving(rows: R, head_dim: int) -> R:
    """Rows of whole heads from llama.cpp's order back to the order of two halves.

    In a `llama` llama.cpp rotates neighbouring pairs, so its converter stores row `half * head_dim / 2 + i` of each
    head at `2 i + half`; other architectures it stores as they are. rows: [num_heads * head_dim, ...], a tensor or an
    array; returns the same shape.
    """
    pairs: Any = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])
    in_halves: R = pairs.swapaxes(1, 2).reshape(rows.shape)
    return in_halves
