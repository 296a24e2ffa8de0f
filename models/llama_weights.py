"""A Llama's weights, and how they are stacked as they come out of a checkpoint.

Each stack (query, key and value rows; gate and up rows) is filled in place and packed as soon as it is whole, so that
beside the growing model there is never more than the stacks that are still open.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ..checkpoints.llama_weights import llama_weights as checkpoint_weights
from ..checkpoints.shape import ModelShape
from .linear import Linear, compute_dtype, held_columns, held_dtype, hold_linear, is_packed

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class Layer(NamedTuple):
    """Weights of one layer; vectors in the compute dtype."""

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


class LlamaWeights(NamedTuple):
    """Weights of a whole model."""

    embedding: Tensor
    """[vocab_size, hidden_size] in the model's dtype"""
    layers: tuple[Layer, ...]
    final_norm: Tensor
    """[hidden_size] in the compute dtype"""
    head: Linear
    """[vocab_size, hidden_size]"""

    @property
    def num_bytes(self) -> int:
        """Bytes held on the device."""
        parts = [self.embedding, self.final_norm, self.head, *(part for layer in self.layers for part in layer)]
        return sum(part.nbytes if isinstance(part, Tensor) else part.num_bytes for part in parts)


LAYER_STACKS: dict[str, tuple[str, ...]] = {
    "input_norm": ("input_layernorm.weight",),
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "output": ("self_attn.o_proj.weight",),
    "mlp_norm": ("post_attention_layernorm.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""Field of `Layer` -> the tensors stacked in it, top to bottom, by their names within the layer."""


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of a Llama of `shape`; a tied head has none of its own."""
    return {name: size for (_, name), size in checkpoint_weights(shape).items()}


def planned_weight_bytes(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> int:
    """`LlamaWeights.num_bytes` of a model that is not loaded yet, if all its matrices can be held in `held_dtype`."""
    sizes = tensor_shapes(shape)
    held = held_dtype(dtype, device)
    embedding = sizes.pop(EMBEDDING)
    if shape.tie_word_embeddings and is_packed(dtype, device):
        sizes[HEAD] = embedding
    vectors = sum(prod(size) for size in sizes.values() if len(size) == 1)
    matrices = sum(size[0] * held_columns(size[1], held) for size in sizes.values() if len(size) == 2)
    return prod(embedding) * dtype.itemsize + vectors * compute_dtype(dtype, device).itemsize + matrices * held.itemsize


def gather_weights(
    shape: ModelShape, pieces: Iterator[tuple[str, int, Tensor]], dtype: torch.dtype, device: torch.device
) -> LlamaWeights:
    """Stack (canonical name, first row, rows), in any order, into weights of `dtype` on `device`."""
    width = compute_dtype(dtype, device)
    stacks = _stacks(shape, dtype, device)
    finished: dict[str, Tensor | Linear] = {}
    for name, first_row, rows in pieces:
        stack, offset = stacks[name]
        if stack.put(offset + first_row, rows):
            finished[stack.name] = stack.take() if name == EMBEDDING else _finish(stack.take(), width)
    embedding, final_norm = finished[EMBEDDING], finished[FINAL_NORM]
    assert isinstance(embedding, Tensor) and isinstance(final_norm, Tensor)
    head = finished[HEAD] if HEAD in finished else hold_linear(embedding, shared=True)
    assert not isinstance(head, Tensor)
    layers = tuple(_layer(finished, layer) for layer in range(shape.num_layers))
    return LlamaWeights(embedding, layers, final_norm, head)


def _layer(finished: dict[str, Tensor | Linear], layer: int) -> Layer:
    return Layer._make(finished[f"{layer}.{field}"] for field in Layer._fields)


def _finish(whole: Tensor, width: torch.dtype) -> Tensor | Linear:
    return hold_linear(whole) if whole.dim() == 2 else whole.to(width)


class _Stack:
    """Rows of one or more tensors, one below the other."""

    def __init__(self, name: str, size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.name, self.size, self.dtype, self.device = name, size, dtype, device
        self.whole: Tensor | None = None
        self.missing_rows = size[0]

    def put(self, first_row: int, rows: Tensor) -> bool:
        """Copy rows in; returns whether the stack is whole now."""
        if self.whole is None:
            self.whole = torch.empty(self.size, dtype=self.dtype, device=self.device)
        self.whole[first_row : first_row + len(rows)].copy_(rows)
        self.missing_rows -= len(rows)
        return self.missing_rows == 0

    def take(self) -> Tensor:
        """Hand the tensor over, so that it lives no longer than its taker wants."""
        assert self.whole is not None and self.missing_rows == 0
        whole, self.whole = self.whole, None
        return whole


def _stacks(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> dict[str, tuple[_Stack, int]]:
    """Canonical name -> the stack that the tensor goes to, and its first row there."""
    sizes = tensor_shapes(shape)
    members: dict[str, tuple[str, ...]] = {name: (name,) for name in (EMBEDDING, FINAL_NORM, HEAD) if name in sizes}
    for layer in range(shape.num_layers):
        for field, names in LAYER_STACKS.items():
            members[f"{layer}.{field}"] = tuple(f"model.layers.{layer}.{name}" for name in names)
    placed: dict[str, tuple[_Stack, int]] = {}
    for stack_name, names in members.items():
        num_rows = sum(sizes[name][0] for name in names)
        stack, offset = _Stack(stack_name, (num_rows, *sizes[names[0]][1:]), dtype, device), 0
        for name in names:
            placed[name] = (stack, offset)
            offset += sizes[name][0]
    return placed
