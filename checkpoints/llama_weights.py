"""The weight tensors of a Llama model: which must be there and how large each is, under both naming schemes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ..errors import CorruptCheckpoint, UnsupportedModel
from .shape import ModelShape

Names = tuple[str, str]
"""(GGUF name, Hugging Face name)"""

EMBEDDING: Names = ("token_embd.weight", "model.embed_tokens.weight")
HEAD: Names = ("output.weight", "lm_head.weight")


def llama_weights(shape: ModelShape) -> dict[Names, tuple[int, ...]]:
    """Names -> shape (outermost first) of every weight that a loaded model holds; a tied head is not among them."""
    hidden, ffn = shape.hidden_size, shape.intermediate_size
    query, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    weights: dict[Names, tuple[int, ...]] = {
        EMBEDDING: (shape.vocab_size, hidden),
        ("output_norm.weight", "model.norm.weight"): (hidden,),
    }
    if not shape.tie_word_embeddings:
        weights[HEAD] = (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        for gguf_name, hf_name, size in (
            ("attn_norm", "input_layernorm", (hidden,)),
            ("attn_q", "self_attn.q_proj", (query, hidden)),
            ("attn_k", "self_attn.k_proj", (kv, hidden)),
            ("attn_v", "self_attn.v_proj", (kv, hidden)),
            ("attn_output", "self_attn.o_proj", (hidden, query)),
            ("ffn_norm", "post_attention_layernorm", (hidden,)),
            ("ffn_gate", "mlp.gate_proj", (ffn, hidden)),
            ("ffn_up", "mlp.up_proj", (ffn, hidden)),
            ("ffn_down", "mlp.down_proj", (hidden, ffn)),
        ):
            weights[f"{ours}{gguf_name}.weight", f"{theirs}{hf_name}.weight"] = size
    return weights


def count_llama_parameters(shape: ModelShape) -> int:
    """Elements of all of them."""
    return sum(prod(size) for size in llama_weights(shape).values())


def check_weights(
    found: Mapping[str, tuple[int, ...]], shape: ModelShape, *, scheme: int, ignored: frozenset[str], where: str
) -> None:
    """Hold the tensors `found` (name -> shape, outermost first) against what `shape` needs.

    `scheme`: index into Names; `ignored`: last parts of names that carry no weight. Raises CorruptCheckpoint for a
    missing tensor or one of another shape, UnsupportedModel for one that a Llama model does not have.
    """
    wanted = {names[scheme]: size for names, size in llama_weights(shape).items()}
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
                f"{where}: tensor {name!r} is not part of the supported llama architecture",
                advice="biases, rope factors, adapters and quantization scales are not supported yet",
            )
