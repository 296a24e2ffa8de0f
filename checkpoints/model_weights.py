"""The weight tensors of a model of any supported family: which must be there, how large each is, how it is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from ..errors import CorruptCheckpoint, UnsupportedModel
from .llama_weights import (
    HEAD,
    LayerTensor,
    Names,
    Size,
    decoder_weights,
    llama_weights,
    norm_tensors,
    projections,
)
from .shape import ModelShape

Q_NORM, K_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"


def model_weights(shape: ModelShape) -> dict[Names, Size]:
    """Names -> size of every weight that a loaded model holds; a tied head is not among them."""
    return _FAMILIES[shape.architecture](shape)


def held_weights(shape: ModelShape) -> dict[Names, Size]:
    """As `model_weights`, with the sizes that a loaded model holds: a norm of heads once for each of them."""
    held = model_weights(shape)
    for names, size in held.items():
        if names[1].endswith(Q_NORM):
            held[names] = (shape.num_heads * size[0],)
        elif names[1].endswith(K_NORM):
            held[names] = (shape.num_kv_heads * size[0],)
    return held


def has_head_norms(shape: ModelShape) -> bool:
    """Whether queries and keys are normalised head by head."""
    return any(names[1].endswith(Q_NORM) for names in model_weights(shape))


def count_parameters(shape: ModelShape) -> int:
    """Elements of all of them."""
    return sum(prod(size) for size in model_weights(shape).values())


def check_weights(
    found: Mapping[str, Size], shape: ModelShape, *, scheme: int, ignored: frozenset[str], where: str
) -> None:
    """Hold the tensors `found` (name -> size, outermost first) against what `shape` needs.

    `scheme`: index into Names; `ignored`: last parts of names that carry no weight. Raises CorruptCheckpoint for a
    missing tensor or one of another size, UnsupportedModel for one that a model of this family does not have.
    """
    wanted = {names[scheme]: size for names, size in model_weights(shape).items()}
    for name, size in wanted.items():
        if name not in found:
            raise CorruptCheckpoint(f"{where}: tensor {name!r} is missing", advice="fetch the model again")
        if found[name] != size:
            raise CorruptCheckpoint(
                f"{where}: tensor {name!r} has shape {list(found[name])}, the configuration asks for {list(size)}"
            )
    for name in found:
        is_tied_head = name == HEAD[scheme]
        if name not in wanted and not is_tied_head and name.rpartition(".")[2] not in ignored:
            raise UnsupportedModel(
                f"{where}: tensor {name!r} is not part of the {shape.architecture} model that its configuration states",
                advice="adapters, quantization scales and biases that the configuration does not name are not"
                " supported",
            )


def _head_norms(shape: ModelShape) -> list[LayerTensor]:
    return [("attn_q_norm.weight", Q_NORM, (shape.head_dim,)), ("attn_k_norm.weight", K_NORM, (shape.head_dim,))]


def _qwen3_weights(shape: ModelShape) -> dict[Names, Size]:
    norms = norm_tensors(shape, {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"})
    return decoder_weights(shape, [*norms, *projections(shape), *_head_norms(shape)])


def _gemma3_weights(shape: ModelShape) -> dict[Names, Size]:
    names = {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    return decoder_weights(shape, [*norm_tensors(shape, names), *projections(shape), *_head_norms(shape)])


_FAMILIES: dict[str, Callable[[ModelShape], dict[Names, Size]]] = {
    "llama": llama_weights,
    "mistral": llama_weights,
    "qwen2": llama_weights,
    "qwen3": _qwen3_weights,
    "gemma3": _gemma3_weights,
}
