"""The real model against tokens that transformers chose (facts: head of tests/data/smollm2_reference.jsonl's rows)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from callboard.checkpoints.shape import Checkpoint, ModelShape
from callboard.models.load import load_model

REFERENCE = Path(__file__).parents[1] / "data" / "smollm2_reference.jsonl"
NEAR_TIE = 0.02
"""Two correct implementations in float32 may choose differently where the two best logits are nearer than this."""
SMOLLM2 = ModelShape(
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


@pytest.mark.slow
def test_greedy_tokens_equal_the_reference(smollm2_gguf, attention_factory):
    checkpoint = Checkpoint("here", "gguf", str(smollm2_gguf), "smollm2")
    model = load_model(checkpoint, SMOLLM2, torch.float32, torch.device("cpu"), 8192, None)
    rows = [json.loads(line) for line in REFERENCE.read_text().splitlines()]
    short = sorted(rows, key=lambda row: len(row["prompt_ids"]))[::4]
    assert len(short) == 6
    for row in short:
        prompt, output = row["prompt_ids"], row["output_ids"]
        token_ids = torch.tensor(prompt + output[:-1])
        hidden = model.forward(token_ids, torch.arange(len(token_ids)), attention_factory())
        logits = model.compute_logits(hidden[len(prompt) - 1 :])
        near_ties = [position for position, gap in enumerate(row["top2_gaps"]) if gap < NEAR_TIE]
        sure = near_ties[0] if near_ties else len(output)
        assert logits.argmax(-1).tolist()[:sure] == output[:sure], row["name"]
        log_probabilities = logits[:8].log_softmax(-1)
        for position, best in enumerate(row["top5_first8"]):
            for token_id, expected, _ in best:
                assert log_probabilities[position, token_id].item() == pytest.approx(expected, abs=2e-3)
