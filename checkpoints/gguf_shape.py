"""The shape of a model in a GGUF file."""

from __future__ import annotations

import msgspec

from ..errors import CorruptCheckpoint, UnsupportedModel
from .architectures import GGUF_ARCHITECTURES, unsupported_architecture
from .gguf_file import GGUFFile, read_gguf
from .gguf_rope import ROPE_FACTORS, read_rope_factors, refuse_ropes
from .llama_weights import EMBEDDING, HEAD
from .model_weights import check_weights, count_parameters
from .shape import ModelShape
from .shape_checks import check_shape
from .special_ids import gguf_special_ids

_GEMMA3_PERIOD = 6
"""Every sixth layer of a Gemma 3 with windows sees everything; its files do not say so."""
_GEMMA3_WINDOW_THETA = 10_000.0
_GEMMA3_LAYERS_27B = 62
"""Gemma 3 27B is the one whose queries are not scaled by their own size; its files do not say so either."""
_DEFAULT_THETA = {"gemma3": 1_000_000.0}
_DEFAULT_EPS = {"llama": 1e-5}


def read_gguf_shape(path: str) -> ModelShape:
    """The shape of the file at `path`; errors as in `read_shape`."""
    file = read_gguf(path)
    architecture = file.text("general.architecture")
    if architecture is None:
        raise CorruptCheckpoint(f"{path} has no general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise unsupported_architecture(architecture, path)
    if (file.integer("split.count") or 1) > 1:
        raise UnsupportedModel(f"{path} is one part of a split GGUF file", advice="merge the parts with gguf-split")
    _refuse_features(file, architecture)
    refuse_ropes(file, architecture)
    num_heads = _required(file, f"{architecture}.attention.head_count")
    hidden_size = _required(file, f"{architecture}.embedding_length")
    num_kv_heads = file.integer(f"{architecture}.attention.head_count_kv")
    head_dim = file.integer(f"{architecture}.attention.key_length")
    special = gguf_special_ids(path)
    shape = ModelShape(
        architecture=architecture,
        num_layers=_required(file, f"{architecture}.block_count"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
        head_dim=hidden_size // max(num_heads, 1) if head_dim is None else head_dim,
        intermediate_size=_required(file, f"{architecture}.feed_forward_length"),
        vocab_size=_vocab_size(file),
        max_position=_required(file, f"{architecture}.context_length"),
        rope_theta=file.number(f"{architecture}.rope.freq_base") or _DEFAULT_THETA.get(architecture, 10_000.0),
        rms_norm_eps=file.number(f"{architecture}.attention.layer_norm_rms_epsilon")
        or _DEFAULT_EPS.get(architecture, 1e-6),
        tie_word_embeddings=HEAD[0] not in file.tensors,
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        num_parameters=0,
        has_qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        has_output_bias="blk.0.attn_output.bias" in file.tensors,
        has_mlp_bias="blk.0.ffn_down.bias" in file.tensors,
    )
    check_shape(shape, path)
    _refuse_partial_rope(file, shape)
    shape = msgspec.structs.replace(shape, rope_factors=read_rope_factors(file, shape))
    if architecture == "gemma3":
        shape = _with_gemma3_layers(file, shape)
    check_shape(shape, path)
    found = {tensor.name: tuple(reversed(tensor.dims)) for tensor in file.tensors.values()}
    found.pop(ROPE_FACTORS, None)
    check_weights(found, shape, scheme=0, ignored=frozenset(), where=path)
    return msgspec.structs.replace(shape, num_parameters=count_parameters(shape))


def _with_gemma3_layers(file: GGUFFile, shape: ModelShape) -> ModelShape:
    """What the format leaves to the program: which layers have a window, how they turn, and the 27B's scale."""
    window = file.integer("gemma3.attention.sliding_window")
    if window:
        shape = msgspec.structs.replace(
            shape,
            windows=tuple(None if layer % _GEMMA3_PERIOD == 0 else window for layer in range(1, shape.num_layers + 1)),
            window_rope_theta=file.number("gemma3.rope.freq_base_swa") or _GEMMA3_WINDOW_THETA,
        )
    if shape.num_layers == _GEMMA3_LAYERS_27B:
        shape = msgspec.structs.replace(shape, query_divisor=float(shape.hidden_size // shape.num_heads))
    return shape


def _required(file: GGUFFile, key: str) -> int:
    if isinstance(file.metadata.get(key), list):
        raise UnsupportedModel(f"{file.path}: {key} differs by layer, which is not supported")
    value = file.integer(key)
    if value is None:
        raise CorruptCheckpoint(f"{file.path} has no {key}")
    return value


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding; the list of tokens may be shorter (padding), never longer."""
    embedding = file.tensors.get(EMBEDDING[0])
    num_tokens = len(file.texts("tokenizer.ggml.tokens") or ())
    if embedding is None or len(embedding.dims) != 2:
        return num_tokens
    if num_tokens > embedding.dims[1]:
        raise CorruptCheckpoint(f"{file.path} has {num_tokens:,} tokens, but {embedding.dims[1]:,} embeddings")
    return embedding.dims[1]


def _refuse_features(file: GGUFFile, architecture: str) -> None:
    """Fields that change what the model computes and that this version does not know."""
    refused = ["expert_count", "final_logit_softcapping", "attn_logit_softcapping"]
    if architecture != "gemma3":
        refused.append("attention.sliding_window")
    for field in refused:
        if file.number(f"{architecture}.{field}"):
            raise UnsupportedModel(
                f"{file.path}: {architecture}.{field} is not supported",
                advice="docs/models.md names what is supported of each family",
            )
    for field in ("attention.sliding_window_pattern", "attention.scale", "logit_scale"):
        if f"{architecture}.{field}" in file.metadata:
            raise UnsupportedModel(f"{file.path}: {architecture}.{field} is not supported")
    if file.flag(f"{architecture}.attention.causal") is False:
        raise UnsupportedModel(
            f"{file.path}: {architecture}.attention.causal is false; only causal models are supported"
        )


def _refuse_partial_rope(file: GGUFFile, shape: ModelShape) -> None:
    for field in ("rope.dimension_count", "attention.value_length"):
        value = file.integer(f"{shape.architecture}.{field}")
        if value is not None and value != shape.head_dim:
            raise UnsupportedModel(
                f"{file.path}: {shape.architecture}.{field} is {value}, it must be the head size {shape.head_dim}"
            )
