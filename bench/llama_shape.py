"""The shape of Llama-3.1-8B, without its files."""

from __future__ import annotations

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
