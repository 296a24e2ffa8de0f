"""The shapes of Llama-3.1-8B and Llama-3-70B, without their files."""

from __future__ import annotations

import msgspec

from ..checkpoints import ModelShape

LLAMA_3_1_8B = ModelShape(
    architecture="llama",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    max_position=131072,
    rope_theta=500_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    bos_token_id=128000,
    eos_token_ids=(128001, 128008, 128009),
    num_parameters=8_030_261_248,
)
LLAMA_3_70B = msgspec.structs.replace(
    LLAMA_3_1_8B,
    num_layers=80,
    hidden_size=8192,
    num_heads=64,
    intermediate_size=28672,
    max_position=8192,
    num_parameters=70_553_706_496,
)
