"""A decoder's weights, and how they are stacked as they come out of a checkpoint.

Each part (query, key and value rows with their bias; gate and up rows) is filled in place and packed as soon as it is
whole, so that beside the growing model there is never more than the parts that are still open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..checkpoints import llama_weights
from ..checkpoints.model_weights import held_weights, model_weights
from ..checkpoints.shape import ModelShape
from .linear import Linear, compute_dtype, held_columns, held_dtype, hold_linear, is_packed
from .parts import Part, Rows, hold_embedding, hold_head_norms, hold_matrix, hold_norm

_, EMBEDDING = llama_weights.EMBEDDING
_, FINAL_NORM = llama_weights.FINAL_NORM
_, HEAD = llama_weights.HEAD
_NONE = torch.empty(0)

Stacks = Mapping[str, tuple[str, ...]]
"""Field of `Layer` -> the tensors stacked in it, top to bottom, by their names within the layer."""


class Layer(NamedTuple):
    """Weights of one layer. Norms are float32; those that its family lacks are empty."""

    input_norm: Tensor
    """[hidden_size]"""
    qkv: Linear
    """[(num_heads + 2 num_kv_heads) * head_dim, hidden_size]"""
    output: Linear
    """[hidden_size, num_heads * head_dim]"""
    mlp_norm: Tensor
    """[hidden_size]"""
    gate_up: Linear
    """[2 intermediate_size, hidden_size]"""
    down: Linear
    """[hidden_size, intermediate_size]"""
    head_norm: Tensor = _NONE
    """[num_heads + num_kv_heads, head_dim]: of query heads, then of key heads"""
    after_attention_norm: Tensor = _NONE
    """[hidden_size]"""
    after_mlp_norm: Tensor = _NONE
    """[hidden_size]"""


class Weights(NamedTuple):
    """Weights of a whole model."""

    embedding: Tensor
    """[vocab_size, hidden_size] in the model's dtype"""
    layers: tuple[Layer, ...]
    final_norm: Tensor
    """[hidden_size] float32"""
    head: Linear
    """[vocab_size, hidden_size]"""

    @property
    def num_bytes(self) -> int:
        """Bytes held on the device."""
        parts = [self.embedding, self.final_norm, self.head, *(part for layer in self.layers for part in layer)]
        return sum(part.nbytes if isinstance(part, Tensor) else part.num_bytes for part in parts)


MATRICES: Stacks = {
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "output": ("self_attn.o_proj.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""The same in every family; a bias goes where its matrix goes."""
HEAD_NORM = "head_norm"
HEAD_NORMS: Stacks = {HEAD_NORM: ("self_attn.q_norm.weight", "self_attn.k_norm.weight")}


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of a model of `shape`; a tied head has none of its own."""
    return {name: size for (_, name), size in model_weights(shape).items()}


def planned_weight_bytes(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> int:
    """`Weights.num_bytes` of a model that is not loaded yet, if all its matrices can be held in `held_dtype`."""
    sizes = {name: size for (_, name), size in held_weights(shape).items()}
    held, width = held_dtype(dtype, device), compute_dtype(dtype, device)
    embedding = sizes.pop(EMBEDDING)
    if shape.tie_word_embeddings and is_packed(dtype, device):
        sizes[HEAD] = embedding
    num_bytes = prod(embedding) * dtype.itemsize
    for name, size in sizes.items():
        if len(size) == 2:
            num_bytes += size[0] * held_columns(size[1], held) * held.itemsize
        else:
            num_bytes += size[0] * (torch.float32 if name.endswith("norm.weight") else width).itemsize
    return num_bytes


def gather_weights(
    shape: ModelShape,
    stacks: Stacks,
    norm_offset: float,
    pieces: Iterator[tuple[str, int, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
) -> Weights:
    """Stack (canonical name, first row, rows), in any order, into weights of `dtype` on `device`.

    `stacks`: of the family; `norm_offset`: what its norms add to their stored weights.
    """
    parts = _parts(shape, stacks, norm_offset, dtype, device)
    placed = {name: (part, rows, first) for part in parts for rows in part.rows for name, first in rows.firsts.items()}
    finished: dict[str, Tensor | Linear] = {}
    for name, first_row, new_rows in pieces:
        part, rows, first = placed[name]
        rows.put(first + first_row, new_rows)
        if part.is_whole:
            finished[part.name] = part.take()
    embedding, final_norm = finished[EMBEDDING], finished[FINAL_NORM]
    assert isinstance(embedding, Tensor) and isinstance(final_norm, Tensor)
    head = finished[HEAD] if HEAD in finished else hold_linear(embedding, shared=True)
    assert not isinstance(head, Tensor)
    layers = tuple(
        Layer(**{field: finished[f"{layer}.{field}"] for field in stacks})  # type: ignore[arg-type]
        for layer in range(shape.num_layers)
    )
    return Weights(embedding, layers, final_norm, head)


def _parts(
    shape: ModelShape, stacks: Stacks, norm_offset: float, dtype: torch.dtype, device: torch.device
) -> list[Part]:
    """What the model is made of: the embedding, the last norm, the head, and the fields of every layer."""
    sizes = tensor_shapes(shape)

    def rows_of(names: tuple[str, ...], rows_dtype: torch.dtype) -> Rows:
        return Rows({name: sizes[name] for name in names}, rows_dtype, device)

    norm = hold_norm(norm_offset)
    parts = [
        Part(EMBEDDING, [rows_of((EMBEDDING,), dtype)], hold_embedding),
        Part(FINAL_NORM, [rows_of((FINAL_NORM,), torch.float32)], norm),
    ]
    if HEAD in sizes:
        parts.append(Part(HEAD, [rows_of((HEAD,), dtype)], hold_matrix))
    head_norms = hold_head_norms(shape, norm_offset)
    for layer in range(shape.num_layers):
        for field, short_names in stacks.items():
            names = tuple(f"model.layers.{layer}.{name}" for name in short_names)
            name = f"{layer}.{field}"
            if field == HEAD_NORM:
                parts.append(Part(name, [rows_of((each,), torch.float32) for each in names], head_norms))
            elif field in MATRICES:
                biases = tuple(each.removesuffix("weight") + "bias" for each in names)
                rows = [rows_of(names, dtype)]
                if biases[0] in sizes:
                    rows.append(rows_of(biases, dtype))
                parts.append(Part(name, rows, hold_matrix))
            else:
                parts.append(Part(name, [rows_of(names, torch.float32)], norm))
    return parts
