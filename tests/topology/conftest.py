"""Shapes of models whose sizes are known from their papers and model cards."""

from __future__ import annotations

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
