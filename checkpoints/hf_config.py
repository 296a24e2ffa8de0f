"""The fields of a config.json that matter to a model, with the defaults of each family's class in transformers.

A field that the file leaves out has its class's default; `null` is a value of its own (`"sliding_window": null`).
"""

from __future__ import annotations

import msgspec


class RopeParameters(msgspec.Struct):
    """`rope_parameters` (transformers 5) or `rope_scaling` (before)."""

    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    """The old name of `rope_type`."""
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    partial_rotary_factor: float | None = None
    full_attention: RopeParameters | None = None
    sliding_attention: RopeParameters | None = None
    """Of layers of each kind, where they differ."""

    @property
    def kind(self) -> str:
        """`default`, `linear`, `llama3`, ..."""
        return self.rope_type or self.type or "default"


class LlamaConfig(msgspec.Struct):
    """What the families have in common; defaults are LlamaConfig's."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    original_max_position_embeddings: int | None = None
    rope_theta: float | None = None
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None
    partial_rotary_factor: float | None = None
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool | None = False
    hidden_act: str = "silu"
    attention_bias: bool | None = False
    mlp_bias: bool | None = False
    sliding_window: int | None = None
    quantization_config: dict[str, object] | None = None


class MistralConfig(LlamaConfig):
    """Defaults are MistralConfig's."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131_072
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None


class Qwen2Config(LlamaConfig):
    """Defaults are Qwen2Config's."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32_768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None


class Qwen3Config(Qwen2Config):
    """Defaults are Qwen3Config's."""

    head_dim: int | None = 128


class Gemma3Config(LlamaConfig):
    """Defaults are Gemma3TextConfig's."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool | None = True
    hidden_activation: str | None = "gelu_pytorch_tanh"
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 6
    layer_types: list[str] | None = None
    rope_local_base_freq: float | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = False


CONFIGS: dict[str, type[LlamaConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma3": Gemma3Config,
}
