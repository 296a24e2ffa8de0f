"""Tensors that llama.cpp's converter stores otherwise than Hugging Face does, put back as they were."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checkpoints.shape import ModelShape
from ..kernels.cpu.quantized_rows import QuantizedRows
from .tensors import StoredTensor

_INTERLEAVED = (".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias")
_NORM = "norm.weight"


def in_canonical_order(stored: StoredTensor, gguf_name: str, shape: ModelShape) -> StoredTensor:
    """`stored`, which reads rows as the file has them, as a tensor that gives Hugging Face's values in its order."""
    if shape.architecture == "llama" and gguf_name.endswith(_INTERLEAVED):
        head_dim, read_quantized = shape.head_dim, stored.read_quantized
        in_order = stored._replace(
            row_group=head_dim,
            read_rows=lambda first, last: undo_interleaving(stored.read_rows(first, last), head_dim),
        )
        if read_quantized is None:
            return in_order
        return in_order._replace(read_quantized=lambda first, last: _undo_in_all(read_quantized(first, last), head_dim))
    if shape.architecture == "gemma3" and gguf_name.endswith(_NORM):
        return stored._replace(read_rows=lambda first, last: stored.read_rows(first, last).float() - 1.0)
    return stored


def _undo_in_all(rows: QuantizedRows, head_dim: int) -> QuantizedRows:
    return QuantizedRows(
        *(undo_interleaving(torch.from_numpy(part), head_dim).numpy() for part in (rows.q, rows.d, rows.m))
    )


def undo_interleaving(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads from llama.cpp's order back to the order of two halves.

    In a `llama` llama.cpp rotates neighbouring pairs, so its converter stores row `half * head_dim / 2 + i` of each
    head at `2 i + half`; other architectures it stores as they are. rows: [num_heads * head_dim, ...]; returns the same
    shape.
    """
    return rows.view(-1, head_dim // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
