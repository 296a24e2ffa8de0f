"""What each family's config.json says beside the sizes: biases, windows, rotary embedding; and what is refused."""

from __future__ import annotations

from typing import TypedDict

from ..errors import CorruptCheckpoint, UnsupportedModel
from .hf_config import Gemma3Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from .hf_rope import Rope, read_gemma3_ropes, read_rope


class Features(TypedDict, total=False):
    """Fields of `ModelShape`."""

    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    rope_theta: float
    rope_factors: tuple[float, ...]
    rope_magnitude: float
    windows: tuple[int | None, ...]
    window_rope_theta: float | None
    query_divisor: float | None


def features_of(config: LlamaConfig, head_dim: int, where: str) -> Features:
    """The fields that depend on the family. Raises UnsupportedModel and CorruptCheckpoint, naming `where`."""
    if isinstance(config, Gemma3Config):
        return _gemma3(config, head_dim, where)
    features = _rope_fields(read_rope(config, head_dim, where))
    bias = bool(config.attention_bias)
    match config:
        case Qwen3Config():
            features |= Features(has_qkv_bias=bias, has_output_bias=bias, windows=_qwen_windows(config, where))
        case Qwen2Config():
            features |= Features(has_qkv_bias=True, windows=_qwen_windows(config, where))
        case MistralConfig():
            features |= Features(windows=_all_layers(config))
        case _:
            mlp_bias = bool(config.mlp_bias)
            features |= Features(has_qkv_bias=bias, has_output_bias=bias, has_mlp_bias=mlp_bias)
    return features


def refuse_features(config: LlamaConfig, where: str) -> None:
    """Fields that change what the model computes and that this version does not know."""
    refused = {"quantization_config": config.quantization_config is not None}
    if isinstance(config, Gemma3Config):
        refused |= {
            "hidden_activation": config.hidden_activation != "gelu_pytorch_tanh",
            "final_logit_softcapping": config.final_logit_softcapping is not None,
            "attn_logit_softcapping": config.attn_logit_softcapping is not None,
            "use_bidirectional_attention": bool(config.use_bidirectional_attention),
        }
    else:
        refused["hidden_act"] = config.hidden_act not in ("silu", "swish")
    if isinstance(config, MistralConfig):
        refused["layer_types"] = config.layer_types is not None
    if type(config) is LlamaConfig:
        refused["sliding_window"] = config.sliding_window is not None
    else:
        refused["mlp_bias"] = bool(config.mlp_bias)
    if isinstance(config, MistralConfig) or type(config) is Qwen2Config:
        refused["attention_bias"] = bool(config.attention_bias)
    for field, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModel(
                f"{where}: {field} {getattr(config, field)!r} is not supported",
                advice="docs/models.md names what is supported of each family; choose a checkpoint without this",
            )


def _gemma3(config: Gemma3Config, head_dim: int, where: str) -> Features:
    wide, local_theta = read_gemma3_ropes(config, head_dim, where)
    bias = bool(config.attention_bias)
    if not 0 < config.query_pre_attn_scalar < float("inf"):
        raise CorruptCheckpoint(
            f"{where}: query_pre_attn_scalar is {config.query_pre_attn_scalar}, it must be positive"
        )
    pattern = config.sliding_window_pattern
    if pattern < 1:
        raise CorruptCheckpoint(f"{where}: sliding_window_pattern is {pattern}, it must be at least 1")
    layer_types = config.layer_types
    if layer_types is None:
        layer_types = [
            "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention"
            for layer in range(config.num_hidden_layers)
        ]
    windows = _windows(layer_types, config.sliding_window, config, where)
    divisor = None if config.query_pre_attn_scalar == head_dim else config.query_pre_attn_scalar
    features = _rope_fields(wide) | Features(
        has_qkv_bias=bias,
        has_output_bias=bias,
        windows=windows,
        query_divisor=divisor,
    )
    if windows and (local_theta != wide.theta or wide.factors):
        features["window_rope_theta"] = local_theta
    return features


def _rope_fields(rope: Rope) -> Features:
    return Features(rope_theta=rope.theta, rope_factors=rope.factors, rope_magnitude=rope.magnitude)


def _all_layers(config: MistralConfig) -> tuple[int | None, ...]:
    return () if config.sliding_window is None else (config.sliding_window,) * config.num_hidden_layers


def _qwen_windows(config: Qwen2Config, where: str) -> tuple[int | None, ...]:
    window = config.sliding_window if config.use_sliding_window else None
    layer_types = config.layer_types
    if layer_types is None:
        layer_types = [
            "full_attention" if window is None or layer < config.max_window_layers else "sliding_attention"
            for layer in range(config.num_hidden_layers)
        ]
    return _windows(layer_types, window, config, where)


def _windows(layer_types: list[str], window: int | None, config: LlamaConfig, where: str) -> tuple[int | None, ...]:
    """By layer; empty if none has one."""
    if len(layer_types) != config.num_hidden_layers:
        raise CorruptCheckpoint(
            f"{where}: layer_types has {len(layer_types):,} entries for {config.num_hidden_layers:,} layers"
        )
    for kind in layer_types:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedModel(
                f"{where}: layer_types {kind!r} is not supported",
                advice="full_attention and sliding_attention are",
            )
    if "sliding_attention" not in layer_types:
        return ()
    if window is None:
        raise UnsupportedModel(
            f"{where}: layer_types names sliding_attention, but no sliding_window is in use",
            advice="check sliding_window and use_sliding_window",
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
