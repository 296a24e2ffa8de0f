"""Shapes of models whose sizes are known from their papers and model cards, and checkpoints without weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from callboard.checkpoints.shape import ModelShape


@pytest.fixture
def smollm2() -> ModelShape:
    """SmolLM2-135M."""
    return ModelShape(
        architecture="llama",
        num_layers=30,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        vocab_size=49152,
        max_position=8192,
        rope_theta=100000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
        num_parameters=134_515_008,
    )


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 257,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""2 layers, 4 heads, 2 KV heads, 4,096 positions."""


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that a check can read: names and shapes of the weights are there, they are a hole in the file."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    sizes: dict[str, list[int]] = {"model.embed_tokens.weight": [257, 64], "model.norm.weight": [64]}
    for layer in range(2):
        for name, size in (
            ("input_layernorm", [64]),
            ("self_attn.q_proj", [64, 64]),
            ("self_attn.k_proj", [32, 64]),
            ("self_attn.v_proj", [32, 64]),
            ("self_attn.o_proj", [64, 64]),
            ("post_attention_layernorm", [64]),
            ("mlp.gate_proj", [128, 64]),
            ("mlp.up_proj", [128, 64]),
            ("mlp.down_proj", [64, 128]),
        ):
            sizes[f"model.layers.{layer}.{name}.weight"] = size
    header, offset = {}, 0
    for name, size in sizes.items():
        num_bytes = 4 * size[0] * (size[1] if len(size) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": size, "data_offsets": [offset, offset + num_bytes]}
        offset += num_bytes
    encoded = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        file.truncate(8 + len(encoded) + offset)
    return folder
