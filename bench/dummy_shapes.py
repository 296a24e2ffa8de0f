"""Configurations of published models of three sizes, for `dummy:` checkpoints: their shapes without their files."""

from __future__ import annotations

import json
from pathlib import Path

Config = dict[str, object]

CONFIGS: dict[str, Config] = {
    "Qwen2.5-0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": 151_643,
        "eos_token_id": 151_643,
    },
    "TinyLlama-1.1B": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32_000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "Llama-3.2-3B": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128_256,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 128_000,
        "eos_token_id": 128_001,
    },
}
"""Name -> config.json."""


def write_config(folder: Path, config: Config) -> str:
    """Make `folder`, which must not be there, and put the config.json in. Returns the model as `serve` takes it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return f"dummy:{folder}"
