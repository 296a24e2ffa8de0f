"""The weight tensors of a Llama model, of which the other families' are variations, under both naming schemes."""

from __future__ import annotations

from collections.abc import Iterable

from .shape import ModelShape

Names = tuple[str, str]
"""(GGUF name, Hugging Face name)"""
Size = tuple[int, ...]
"""Outermost axis first."""
LayerTensor = tuple[str, str, Size]
"""GGUF name and Hugging Face name within a layer, and size."""

EMBEDDING: Names = ("token_embd.weight", "model.embed_tokens.weight")
FINAL_NORM: Names = ("output_norm.weight", "model.norm.weight")
HEAD: Names = ("output.weight", "lm_head.weight")


def llama_weights(shape: ModelShape) -> dict[Names, Size]:
    """Names -> size of every weight that a loaded model holds; a tied head is not among them."""
    norms = norm_tensors(shape, {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"})
    return decoder_weights(shape, [*norms, *projections(shape)])


def decoder_weights(shape: ModelShape, layer_tensors: Iterable[LayerTensor]) -> dict[Names, Size]:
    """Embedding, last norm, head, and `layer_tensors` in every layer."""
    weights: dict[Names, Size] = {
        EMBEDDING: (shape.vocab_size, shape.hidden_size),
        FINAL_NORM: (shape.hidden_size,),
    }
    if not shape.tie_word_embeddings:
        weights[HEAD] = (shape.vocab_size, shape.hidden_size)
    tensors = list(layer_tensors)
    for layer in range(shape.num_layers):
        for gguf_name, hf_name, size in tensors:
            weights[f"blk.{layer}.{gguf_name}", f"model.layers.{layer}.{hf_name}"] = size
    return weights


def norm_tensors(shape: ModelShape, names: dict[str, str]) -> list[LayerTensor]:
    """Norms over the hidden state; `names`: GGUF name -> Hugging Face name."""
    return [(f"{ours}.weight", f"{theirs}.weight", (shape.hidden_size,)) for ours, theirs in names.items()]


def projections(shape: ModelShape) -> list[LayerTensor]:
    """The matrices of a layer, and the biases that the shape has."""
    hidden, ffn = shape.hidden_size, shape.intermediate_size
    query, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    tensors: list[LayerTensor] = []
    for gguf_name, hf_name, size, has_bias in (
        ("attn_q", "self_attn.q_proj", (query, hidden), shape.has_qkv_bias),
        ("attn_k", "self_attn.k_proj", (kv, hidden), shape.has_qkv_bias),
        ("attn_v", "self_attn.v_proj", (kv, hidden), shape.has_qkv_bias),
        ("attn_output", "self_attn.o_proj", (hidden, query), shape.has_output_bias),
        ("ffn_gate", "mlp.gate_proj", (ffn, hidden), shape.has_mlp_bias),
        ("ffn_up", "mlp.up_proj", (ffn, hidden), shape.has_mlp_bias),
        ("ffn_down", "mlp.down_proj", (hidden, ffn), shape.has_mlp_bias),
    ):
        tensors.append((f"{gguf_name}.weight", f"{hf_name}.weight", size))
        if has_bias:
            tensors.append((f"{gguf_name}.bias", f"{hf_name}.bias", size[:1]))
    return tensors
