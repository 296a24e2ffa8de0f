"""A decoder's weights, and how they are stacked as they come out of a checkpoint.

Each part (query, key and value rows with their bias; gate and up rows) is filled in place and packed as soon as it is
whole, so that beside the growing model there is never more than the parts that are still open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ..checkpoints import llama_weights
from ..checkpoints.model_weights import held_weights, model_weights
from ..checkpoints.shape import ModelShape
from .linear import Linear, compute_dtype, held_columns, held_dtype, hold_linear, is_packed
from .parts import Part, RowsOfPiece, Sizes, Stack, TensorStack, hold_head_norms, hold_norm

_, EMBEDDING = llama_weights.EMBEDDING
_, FINAL_NORM = llama_weights.FINAL_NORM
_, HEAD = llama_weights.HEAD
_NONE = torch.empty(0)

Stacks = Mapping[str, tuple[str, ...]]
"""Field of `Layer` -> the tensors stacked in it, top to bottom, by their names within the layer."""


M = TypeVar("M")
"""How matrices are held."""
E = TypeVar("E")
"""How the embedding is held."""


class Layer(NamedTuple, Generic[M]):
    """Weights of one layer. Norms are float32; those that its family lacks are empty."""

    input_norm: Tensor
    """[hidden_size]"""
    qkv: M
    """[(num_heads + 2 num_kv_heads) * head_dim, hidden_size]"""
    output: M
    """[hidden_size, num_heads * head_dim]"""
    mlp_norm: Tensor
    """[hidden_size]"""
    gate_up: M
    """[2 intermediate_size, hidden_size]"""
    down: M
    """[hidden_size, intermediate_size]"""
    head_norm: Tensor = _NONE
    """[num_heads + num_kv_heads, head_dim]: of query heads, then of key heads"""
    after_attention_norm: Tensor = _NONE
    """[hidden_size]"""
    after_mlp_norm: Tensor = _NONE
    """[hidden_size]"""


class Weights(NamedTuple, Generic[E, M]):
    """Weights of a whole model."""

    embedding: E
    """[vocab_size, hidden_size]"""
    layers: tuple[Layer[M], ...]
    final_norm: Tensor
    """[hidden_size] float32"""
    head: M
    """[vocab_size, hidden_size]"""

    def vectors(self) -> Iterator[Tensor]:
        """All norms."""
        yield self.final_norm
        for layer in self.layers:
            yield from (part for part in layer if isinstance(part, Tensor))

    def matrices(self) -> Iterator[M]:
        """Those of the layers."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)


class Form(Protocol[E, M]):
    """How a model holds its embedding and its matrices."""

    def matrix(self, sizes: Sizes) -> Stack[Any]:
        """Where the rows of a matrix are gathered."""
        ...

    def bias(self, sizes: Sizes) -> Stack[Any]:
        """Where the elements of its bias are."""
        ...

    def hold_matrix(self, matrix: Any, bias: Any = None) -> M:
        """Both, when they are whole."""
        ...

    def hold_embedding(self, matrix: Any) -> E:
        """The embedding, as it was gathered."""
        ...

    def tie_head(self, embedding: E) -> M:
        """A head that has the embedding's weights."""
        ...


class TensorForm:
    """The embedding in `dtype`, the matrices as `hold_linear` chooses; on `device`."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device

    def matrix(self, sizes: Sizes) -> TensorStack:
        return TensorStack(sizes, self._dtype, self._device)

    def bias(self, sizes: Sizes) -> TensorStack:
        return TensorStack(sizes, self._dtype, self._device)

    def hold_matrix(self, matrix: Tensor, bias: Tensor | None = None) -> Linear:
        return hold_linear(matrix, bias)

    def hold_embedding(self, matrix: Tensor) -> Tensor:
        return matrix

    def tie_head(self, embedding: Tensor) -> Linear:
        return hold_linear(embedding, shared=True)


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
    pieces: Iterator[tuple[str, int, RowsOfPiece]],
    form: Form[E, M],
    device: torch.device,
) -> Weights[E, M]:
    """Stack (canonical name, first row, rows), in any order, into weights of a form, with norms on `device`.

    `stacks`: of the family; `norm_offset`: what its norms add to their stored weights.
    """
    parts = _parts(shape, stacks, norm_offset, form, device)
    placed = {
        name: (part, stack, first) for part in parts for stack in part.stacks for name, first in stack.firsts.items()
    }
    finished: dict[str, Any] = {}
    for name, first_row, new_rows in pieces:
        part, stack, first = placed[name]
        stack.put(first + first_row, new_rows)
        if part.is_whole:
            finished[part.name] = part.take()
    embedding: E = finished[EMBEDDING]
    head: M = finished[HEAD] if HEAD in finished else form.tie_head(embedding)
    layers = tuple(
        Layer[M](**{field: finished[f"{layer}.{field}"] for field in stacks}) for layer in range(shape.num_layers)
    )
    return Weights(embedding, layers, finished[FINAL_NORM], head)


def _parts(
    shape: ModelShape, stacks: Stacks, norm_offset: float, form: Form[E, M], device: torch.device
) -> list[Part[Any]]:
    """What the model is made of: the embedding, the last norm, the head, and the fields of every layer."""
    sizes = tensor_shapes(shape)

    def named(names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        return {name: sizes[name] for name in names}

    def norms(names: tuple[str, ...]) -> TensorStack:
        return TensorStack(named(names), torch.float32, device)

    norm = hold_norm(norm_offset)
    parts: list[Part[Any]] = [
        Part(EMBEDDING, [form.matrix(named((EMBEDDING,)))], form.hold_embedding),
        Part(FINAL_NORM, [norms((FINAL_NORM,))], norm),
    ]
    if HEAD in sizes:
        parts.append(Part(HEAD, [form.matrix(named((HEAD,)))], form.hold_matrix))
    head_norms = hold_head_norms(shape, norm_offset)
    for layer in range(shape.num_layers):
        for field, short_names in stacks.items():
            names = tuple(f"model.layers.{layer}.{name}" for name in short_names)
            name = f"{layer}.{field}"
            if field == HEAD_NORM:
                parts.append(Part(name, [norms((each,)) for each in names], head_norms))
            elif field in MATRICES:
                biases = tuple(each.removesuffix("weight") + "bias" for each in names)
                of_matrix = [form.matrix(named(names))]
                if biases[0] in sizes:
                    of_matrix.append(form.bias(named(biases)))
                parts.append(Part(name, of_matrix, form.hold_matrix))
            else:
                parts.append(Part(name, [norms(names)], norm))
    return parts
