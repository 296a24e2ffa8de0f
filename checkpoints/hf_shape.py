"""The shape of a model in a directory as Hugging Face writes it: config.json, generation_config.json, *.safetensors."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import UnsupportedModel
from .architectures import HUGGING_FACE_CLASSES, unsupported_architecture
from .json_file import decode_json_file
from .llama_weights import check_weights, count_llama_parameters
from .safetensors_files import read_safetensors_directory
from .shape import ModelShape
from .shape_checks import check_shape
from .special_ids import hf_special_ids


class RopeParameters(msgspec.Struct):
    """`rope_parameters` (transformers 5) or `rope_scaling` (before)."""

    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    """The old name of `rope_type`."""
    partial_rotary_factor: float | None = None


class HuggingFaceConfig(msgspec.Struct):
    """The fields of a config.json that matter to a Llama model; all others are ignored. Defaults are LlamaConfig's."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rope_theta: float | None = None
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool | None = False
    hidden_act: str = "silu"
    attention_bias: bool | None = False
    mlp_bias: bool | None = False
    sliding_window: int | None = None
    partial_rotary_factor: float | None = None
    quantization_config: dict[str, msgspec.Raw] | None = None


class _Architectures(msgspec.Struct):
    architectures: list[str] | None = None
    model_type: str | None = None


def read_hf_shape(directory: str) -> ModelShape:
    """The shape of the model in `directory`; errors as in `read_shape`."""
    path = Path(directory) / "config.json"
    architecture = _architecture(path)
    config = decode_json_file(path, HuggingFaceConfig)
    _refuse_features(config, path)
    special = hf_special_ids(directory)
    shape = ModelShape(
        architecture=architecture,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=_first(config.num_key_value_heads, config.num_attention_heads),
        head_dim=_first(config.head_dim, config.hidden_size // max(config.num_attention_heads, 1)),
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        rope_theta=_rope_theta(config),
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        num_parameters=0,
    )
    check_shape(shape, str(path))
    found = {tensor.name: tensor.shape for tensor in read_safetensors_directory(directory).values()}
    check_weights(found, shape, scheme=1, ignored=frozenset({"inv_freq"}), where=directory)
    return msgspec.structs.replace(shape, num_parameters=count_llama_parameters(shape))


def _architecture(path: Path) -> str:
    named = decode_json_file(path, _Architectures)
    name = (named.architectures or [named.model_type or ""])[0]
    if name not in HUGGING_FACE_CLASSES:
        raise unsupported_architecture(name, str(path))
    return HUGGING_FACE_CLASSES[name]


def _refuse_features(config: HuggingFaceConfig, path: Path) -> None:
    """Fields that change what the model computes and that this version does not know."""
    for field, rope in (("rope_scaling", config.rope_scaling), ("rope_parameters", config.rope_parameters)):
        kind = None if rope is None else rope.rope_type or rope.type
        if kind not in (None, "default"):
            raise UnsupportedModel(f"{path}: {field} of type {kind!r} is not supported yet")
    rope_shares = [config.partial_rotary_factor, *(r and r.partial_rotary_factor for r in _ropes(config))]
    refused = {
        "attention_bias": bool(config.attention_bias),
        "mlp_bias": bool(config.mlp_bias),
        "sliding_window": config.sliding_window is not None,
        "partial_rotary_factor": any(share not in (None, 1.0) for share in rope_shares),
        "quantization_config": config.quantization_config is not None,
        "hidden_act": config.hidden_act not in ("silu", "swish"),
    }
    for field, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModel(f"{path}: {field} {getattr(config, field)!r} is not supported yet")


def _ropes(config: HuggingFaceConfig) -> tuple[RopeParameters | None, RopeParameters | None]:
    return config.rope_parameters, config.rope_scaling


def _rope_theta(config: HuggingFaceConfig) -> float:
    stated = [rope.rope_theta for rope in _ropes(config) if rope is not None and rope.rope_theta is not None]
    if stated:
        return stated[0]
    return 10_000.0 if config.rope_theta is None else config.rope_theta


def _first(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
