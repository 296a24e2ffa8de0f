"""The shape of a model in a directory as Hugging Face writes it: config.json, generation_config.json, *.safetensors."""

from __future__ import annotations

from pathlib import Path

import msgspec

from .architectures import hf_architecture
from .hf_config import CONFIGS, LlamaConfig
from .hf_families import features_of, refuse_features
from .json_file import decode_json_file
from .model_weights import check_weights, count_parameters
from .mtp_names import MTP_LAYERS
from .safetensors_files import read_safetensors_directory
from .shape import ModelShape
from .shape_checks import check_shape
from .special_ids import hf_special_ids


def read_hf_shape(directory: str) -> ModelShape:
    """The shape of the model in `directory`; errors as in `read_shape`."""
    shape = read_hf_config(directory)
    tensors = read_safetensors_directory(directory).values()
    found = {tensor.name: tensor.shape for tensor in tensors if not tensor.name.startswith(MTP_LAYERS)}
    check_weights(found, shape, scheme=1, ignored=frozenset({"inv_freq"}), where=directory)
    return shape


def read_hf_config(directory: str, architecture: str | None = None) -> ModelShape:
    """The shape that config.json states, whatever weights lie beside it. architecture: of a file that names another."""
    path = Path(directory) / "config.json"
    where = str(path)
    architecture = architecture or hf_architecture(path)
    config = decode_json_file(path, CONFIGS[architecture])
    refuse_features(config, where)
    special = hf_special_ids(directory, architecture)
    shape = ModelShape(
        architecture=architecture,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=_first(config.num_key_value_heads, config.num_attention_heads),
        head_dim=_head_dim(config),
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        rope_theta=10_000.0,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        num_parameters=0,
    )
    check_shape(shape, where)
    shape = msgspec.structs.replace(shape, **features_of(config, shape.head_dim, where))
    check_shape(shape, where)
    return msgspec.structs.replace(shape, num_parameters=count_parameters(shape))


def _head_dim(config: LlamaConfig) -> int:
    return _first(config.head_dim, config.hidden_size // max(config.num_attention_heads, 1))


def _first(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
