"""The shape of a model in a GGUF file."""

from __future__ import annotations

import msgspec

from ..errors import CorruptCheckpoint, UnsupportedModel
from .architectures import SUPPORTED_ARCHITECTURES, unsupported_architecture
from .gguf_file import GGUFFile, read_gguf
from .llama_weights import EMBEDDING, HEAD, check_weights, count_llama_parameters
from .shape import ModelShape
from .shape_checks import check_shape
from .special_ids import gguf_special_ids


def read_gguf_shape(path: str) -> ModelShape:
    """The shape of the file at `path`; errors as in `read_shape`."""
    file = read_gguf(path)
    architecture = file.text("general.architecture")
    if architecture is None:
        raise CorruptCheckpoint(f"{path} has no general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise unsupported_architecture(architecture, path)
    if (file.integer("split.count") or 1) > 1:
        raise UnsupportedModel(f"{path} is one part of a split GGUF file", advice="merge the parts with gguf-split")
    _refuse_features(file, architecture)
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
        rope_theta=file.number(f"{architecture}.rope.freq_base") or 10_000.0,
        rms_norm_eps=file.number(f"{architecture}.attention.layer_norm_rms_epsilon") or 1e-5,
        tie_word_embeddings=HEAD[0] not in file.tensors,
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        num_parameters=0,
    )
    check_shape(shape, path)
    _refuse_partial_rope(file, shape)
    found = {tensor.name: tuple(reversed(tensor.dims)) for tensor in file.tensors.values()}
    check_weights(found, shape, scheme=0, ignored=frozenset(), where=path)
    return msgspec.structs.replace(shape, num_parameters=count_llama_parameters(shape))


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
    scaling = file.text(f"{architecture}.rope.scaling.type")
    if scaling not in (None, "none"):
        raise UnsupportedModel(f"{file.path}: {architecture}.rope.scaling.type {scaling!r} is not supported yet")
    for field in ("rope.scale_linear", "rope.scaling.factor"):
        if file.number(f"{architecture}.{field}") not in (None, 0.0, 1.0):
            raise UnsupportedModel(f"{file.path}: {architecture}.{field} is not supported yet")
    for field in ("attention.sliding_window", "expert_count"):
        if file.integer(f"{architecture}.{field}"):
            raise UnsupportedModel(f"{file.path}: {architecture}.{field} is not supported yet")
    if "rope_freqs.weight" in file.tensors:
        raise UnsupportedModel(f"{file.path}: rope scaling factors (tensor 'rope_freqs.weight') are not supported yet")


def _refuse_partial_rope(file: GGUFFile, shape: ModelShape) -> None:
    for field in ("rope.dimension_count", "attention.value_length"):
        value = file.integer(f"{shape.architecture}.{field}")
        if value is not None and value != shape.head_dim:
            raise UnsupportedModel(
                f"{file.path}: {shape.architecture}.{field} is {value}, it must be the head size {shape.head_dim}"
            )
