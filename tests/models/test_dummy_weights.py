"""Random weights to a config.json: any family, the same in every piece, load and dtype, with sane logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from callboard.checkpoints import Checkpoint, read_shape, resolve_checkpoint
from callboard.errors import CorruptCheckpoint, ModelNotFound
from callboard.models.dummy_weights import open_dummy
from callboard.models.load import load_model
from callboard.models.protocol import CausalLM

CPU = torch.device("cpu")
TOKENS = torch.tensor([1, 17, 42, 99, 3, 158, 0, 64])
CONFIG = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "head_dim": 16,
}  # fmt: skip
CLASSES = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"]


def checkpoint_of(directory: Path, cls: str, **changes: object) -> Checkpoint:
    (directory / "config.json").write_text(json.dumps({"architectures": [cls], **CONFIG, **changes}))
    return resolve_checkpoint(f"dummy:{directory}")


def load(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> CausalLM:
    return load_model(checkpoint, read_shape(checkpoint), dtype, CPU, 64)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_family_loads_the_same_twice_and_has_sane_logits(tmp_path: Path, attention_factory, cls: str) -> None:
    checkpoint = checkpoint_of(tmp_path, cls)
    first, second = (load(checkpoint) for _ in range(2))
    positions = torch.arange(len(TOKENS))
    logits = first.compute_logits(first.forward(TOKENS, positions, attention_factory()))
    assert torch.equal(logits, second.compute_logits(second.forward(TOKENS, positions, attention_factory())))
    assert logits.isfinite().all()
    assert 0.1 < logits.std() < 10
    assert first.shape.num_layers == 3


def test_bfloat16_is_the_same_model_rounded(tmp_path: Path, attention_factory) -> None:
    checkpoint = checkpoint_of(tmp_path, "LlamaForCausalLM")
    wide, narrow = (
        model.compute_logits(model.forward(TOKENS, torch.arange(len(TOKENS)), attention_factory())).flatten()
        for model in (load(checkpoint, dtype) for dtype in (torch.float32, torch.bfloat16))
    )
    assert torch.cosine_similarity(wide, narrow, dim=0) > 0.999


@pytest.mark.parametrize("piece_elements", [1, 100, 999, 1 << 20])
def test_a_tensor_does_not_depend_on_its_pieces(monkeypatch: pytest.MonkeyPatch, piece_elements: int) -> None:
    stored = open_dummy({"a.weight": (53, 37)})["a.weight"]
    whole = stored.read_rows(0, 53)
    monkeypatch.setattr("callboard.models.tensors._PIECE_ELEMENTS", piece_elements)
    assert torch.equal(torch.cat([rows for _, rows in stored.pieces()]), whole)


def test_values_are_even_and_of_variance_one_over_columns() -> None:
    stored = open_dummy({"a.weight": (1000, 300), "b.weight": (1000, 300), "norm.weight": (7,), "c.bias": (7,)})
    values, others = (stored[name].read_rows(0, 1000).double() for name in ("a.weight", "b.weight"))
    scaled = values * 300**0.5 / 12**0.5 + 0.5
    assert 0 <= scaled.min() < 1e-4 and 1 - 1e-4 < scaled.max() <= 1
    # 300,000 even numbers: mean 1/2 with standard error 0.00053, variance 1/12 with 0.00014; five of each
    assert abs(scaled.mean() - 0.5) < 0.0027 and abs(scaled.var() - 1 / 12) < 0.0007
    assert abs((values * others).mean() * 300) < 0.01
    assert torch.equal(stored["norm.weight"].read_rows(0, 7), torch.ones(7))
    assert torch.equal(stored["c.bias"].read_rows(2, 5), torch.zeros(3))


def test_what_is_no_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds no config\.json"):
        resolve_checkpoint(f"dummy:{tmp_path}")
    checkpoint = checkpoint_of(tmp_path, "LlamaForCausalLM", num_key_value_heads=3)
    with pytest.raises(CorruptCheckpoint, match="not a multiple"):
        read_shape(checkpoint)
