"""A decoder's weights, and how they are stacked as they come out of a checkpoint.

Each part (query, key and value rows with their bias; gate and up rows) is filled in place and packed as soon as it is
whole, so that beside the growing model there is never more than the parts that are still open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..checkpoints import llama_weights
from ..checkpoints.model_weights import model_weights
from ..checkpoints.shape import ModelShape
from ..kernels.cpu.quantized_rows import Float32s
from .parts import ArrayStack, Part, RowsOfPiece, Sizes, Stack, norm_of_heads, with_offset

_, EMBEDDING = llama_weights.EMBEDDING
_, FINAL_NORM = llama_weights.FINAL_NORM
_, HEAD = llama_weights.HEAD
_NONE: Any = ()

Stacks = Mapping[str, tuple[str, ...]]
"""Field of `Layer` -> the tensors stacked in it, top to bottom, by their names within the layer."""


M = TypeVar("M")
"""How matrices are held."""
E = TypeVar("E")
"""How the embedding is held."""
V = TypeVar("V")
"""How norms are held."""
Held = TypeVar("Held", covariant=True)
HeldVector = TypeVar("HeldVector", covariant=True)


class Layer(NamedTuple, Generic[M, V]):
    """Weights of one layer. Norms are float32; those that its family lacks have length 0."""

    input_norm: V
    """[hidden_size]"""
    qkv: M
    """[(num_heads + 2 num_kv_heads) * head_dim, hidden_size]"""
    output: M
    """[hidden_size, num_heads * head_dim]"""
    mlp_norm: V
    """[hidden_size]"""
    gate_up: M
    """[2 intermediate_size, hidden_size]"""
    down: M
    """[hidden_size, intermediate_size]"""
    head_norm: V = _NONE
    """[num_heads + num_kv_heads, head_dim]: of query heads, then of key heads"""
    after_attention_norm: V = _NONE
    """[hidden_size]"""
    after_mlp_norm: V = _NONE
    """[hidden_size]"""

    def norms(self) -> Iterator[V]:
        """Those that there are."""
        every = (self.input_norm, self.mlp_norm, self.head_norm, self.after_attention_norm, self.after_mlp_norm)
        return (norm for norm in every if norm is not _NONE)


class Weights(NamedTuple, Generic[E, M, V]):
    """Weights of a whole model."""

    embedding: E
    """[vocab_size, hidden_size]"""
    layers: tuple[Layer[M, V], ...]
    final_norm: V
    """[hidden_size] float32"""
    head: M
    """[vocab_size, hidden_size]"""

    def vectors(self) -> Iterator[V]:
        """All norms."""
        yield self.final_norm
        for layer in self.layers:
            yield from layer.norms()

    def matrices(self) -> Iterator[M]:
        """Those of the layers."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)


class Form(Protocol[E, Held, HeldVector]):
    """How a model holds its embedding, its matrices and its norms."""

    def matrix(self, sizes: Sizes) -> Stack[Any]:
        """Where the rows of a matrix are gathered."""
        ...

    def bias(self, sizes: Sizes) -> Stack[Any]:
        """Where the elements of its bias are."""
        ...

    def hold_matrix(self, matrix: Any, bias: Any = None) -> Held:
        """Both, when they are whole."""
        ...

    def hold_embedding(self, matrix: Any) -> E:
        """The embedding, as it was gathered."""
        ...

    def tie_head(self, embedding: E) -> Held:
        """A head that has the embedding's weights."""
        ...

    def hold_vector(self, norm: Float32s) -> HeldVector:
        """A norm's weights, or those of all heads."""
        ...


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


def gather_weights(
    shape: ModelShape,
    stacks: Stacks,
    norm_offset: float,
    pieces: Iterator[tuple[str, int, RowsOfPiece]],
    form: Form[E, M, V],
    sizes: dict[str, tuple[int, ...]] | None = None,
) -> Weights[E, M, V]:
    """Stack (canonical name, first row, rows), in any order, into weights of a form.

    `stacks`: of the family; `norm_offset`: what its norms add to their stored weights; `sizes`: of the tensors, where
    they are not those of the shape: some may have no rows.
    """
    parts = _parts(shape, stacks, norm_offset, form, tensor_shapes(shape) if sizes is None else sizes)
    placed = {
        name: (part, stack, first) for part in parts for stack in part.stacks for name, first in stack.firsts.items()
    }
    finished: dict[str, Any] = {part.name: part.take() for part in parts if part.is_whole}
    for name, first_row, new_rows in pieces:
        part, stack, first = placed[name]
        stack.put(first + first_row, new_rows)
        if part.is_whole:
            finished[part.name] = part.take()
    embedding: E = finished[EMBEDDING]
    head: M = finished[HEAD] if HEAD in finished else form.tie_head(embedding)
    layers = tuple(
        Layer[M, V](**{field: finished[f"{layer}.{field}"] for field in stacks}) for layer in range(shape.num_layers)
    )
    return Weights(embedding, layers, finished[FINAL_NORM], head)


def _parts(
    shape: ModelShape, stacks: Stacks, norm_offset: float, form: Form[E, M, V], sizes: dict[str, tuple[int, ...]]
) -> list[Part[Any]]:
    """What the model is made of: the embedding, the last norm, the head, and the fields of every layer."""

    def named(names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        return {name: sizes[name] for name in names}

    def norm(part: str, names: tuple[str, ...]) -> Part[Any]:
        return Part(part, [ArrayStack(named(names))], lambda stored: form.hold_vector(with_offset(stored, norm_offset)))

    def head_norms(part: str, names: tuple[str, ...]) -> Part[Any]:
        def hold(query: Float32s, key: Float32s) -> Any:
            both = with_offset(query, norm_offset), with_offset(key, norm_offset)
            return form.hold_vector(norm_of_heads(shape, *both))

        return Part(part, [ArrayStack(named((each,))) for each in names], hold)

    parts: list[Part[Any]] = [
        Part(EMBEDDING, [form.matrix(named((EMBEDDING,)))], form.hold_embedding),
        norm(FINAL_NORM, (FINAL_NORM,)),
    ]
    if HEAD in sizes:
        parts.append(Part(HEAD, [form.matrix(named((HEAD,)))], form.hold_matrix))
    for layer in range(shape.num_layers):
        for field, short_names in stacks.items():
            names = tuple(f"model.layers.{layer}.{name}" for name in short_names)
            name = f"{layer}.{field}"
            if field == HEAD_NORM:
                parts.append(head_norms(name, names))
            elif field in MATRICES:
                biases = tuple(each.removesuffix("weight") + "bias" for each in names)
                of_matrix = [form.matrix(named(names))]
                if biases[0] in sizes:
                    of_matrix.append(form.bias(named(biases)))
                parts.append(Part(name, of_matrix, form.hold_matrix))
            else:
                parts.append(norm(name, names))
    return parts
