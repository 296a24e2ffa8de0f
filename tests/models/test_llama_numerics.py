"""Logits against transformers: whole prompts, token by token, both dtypes, every kind of heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from callboard.checkpoints.shape import Checkpoint
from callboard.models.load import load_model
from callboard.models.norms import rms_norm
from callboard.models.registry import model_family
from callboard.models.rotary import rotate
from callboard.models.rotary_tables import rotary_table

CPU = torch.device("cpu")
TOKENS = torch.tensor([1, 17, 42, 42, 99, 3, 158, 0, 64, 5, 71, 12])


def load(oracle, path: Path, dtype=torch.float32):
    oracle.model.save_pretrained(path)
    return load_model(Checkpoint("here", "safetensors", str(path), "tiny"), oracle.shape, dtype, CPU, 64, None)


def oracle_logits(oracle):
    return oracle.model(TOKENS[None]).logits[0].float()


def test_a_whole_prompt_equals_transformers(oracle, tmp_path, attention_factory):
    model = load(oracle, tmp_path)
    hidden = model.forward(TOKENS, torch.arange(len(TOKENS)), attention_factory())
    logits = model.compute_logits(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, oracle_logits(oracle), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("chunks", [[1] * 12, [5, 7], [11, 1], [1, 10, 1]])
def test_chunks_and_single_tokens_equal_transformers(oracle, tmp_path, attention_factory, chunks):
    model, attention = load(oracle, tmp_path), attention_factory()
    pieces, start = [], 0
    for size in chunks:
        positions = torch.arange(start, start + size)
        pieces.append(model.compute_logits(model.forward(TOKENS[positions], positions, attention)))
        start += size
    torch.testing.assert_close(torch.cat(pieces), oracle_logits(oracle), atol=1e-4, rtol=1e-4)


def test_bfloat16_is_near_float32_with_the_same_rounded_weights(oracle, tmp_path, attention_factory):
    """bfloat16 has 8 bits of precision: rounded between three layers, logits move by 1 to 2 % of their spread.

    A wrong weight moves them by half of it.
    """
    model = load(oracle, tmp_path, torch.bfloat16)
    logits = model.compute_logits(model.forward(TOKENS, torch.arange(len(TOKENS)), attention_factory()))
    for parameter in oracle.model.parameters():
        parameter.copy_(parameter.bfloat16())
    expected = oracle_logits(oracle)
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().mean() < 0.03 * expected.std()
    assert (logits - expected).abs().max() < 0.2 * expected.std()


def test_attention_gets_the_models_dtype_and_shapes(gqa_oracle, tmp_path, attention_factory):
    seen = []

    def attention(layer, q, k, v):
        seen.append((layer, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype))
        return inner(layer, q, k, v)

    inner = attention_factory()
    model = load(gqa_oracle, tmp_path, torch.bfloat16)
    model.forward(TOKENS, torch.arange(len(TOKENS)), attention)
    assert seen == [(layer, (12, 6, 16), (12, 2, 16), (12, 2, 16), *[torch.bfloat16] * 3) for layer in range(3)]


def test_no_rows_to_sample_give_no_logits(tied_oracle, tmp_path, attention_factory):
    model = load(tied_oracle, tmp_path)
    hidden = model.forward(TOKENS, torch.arange(len(TOKENS)), attention_factory())
    assert model.compute_logits(hidden[:0]).shape == (0, 160)


def test_rows_of_hidden_states_may_be_picked(tied_oracle, tmp_path, attention_factory):
    model = load(tied_oracle, tmp_path)
    hidden = model.forward(TOKENS, torch.arange(len(TOKENS)), attention_factory())
    everything = model.compute_logits(hidden)
    torch.testing.assert_close(model.compute_logits(hidden[::3]), everything[::3], atol=1e-5, rtol=1e-5)


def test_rotation_turns_pairs_by_position_times_frequency():
    head_dim, theta, position = 8, 100.0, 5
    table = torch.from_numpy(rotary_table(head_dim, theta, 6)).unsqueeze(2)
    cos, sin = table[position : position + 1].unbind(1)
    heads = torch.arange(1.0, 9.0).view(1, 1, 8)
    pairs = torch.complex(heads[..., :4], heads[..., 4:])
    angles = torch.tensor([position * theta ** (-2 * i / head_dim) for i in range(4)])
    turned = pairs * torch.polar(torch.ones(4), angles)
    torch.testing.assert_close(rotate(heads, cos, sin), torch.cat((turned.real, turned.imag), -1))


def test_bytes_held_are_those_of_the_weights(tied_oracle, gqa_oracle, tmp_path):
    """float32: each parameter once, cosines and sines of 64 positions, and a packed copy of a tied head."""
    untied = load(gqa_oracle, tmp_path / "untied")
    assert untied.num_weight_bytes == 4 * (gqa_oracle.shape.num_parameters + 64 * 2 * 16)
    tied = load(tied_oracle, tmp_path / "tied")
    extra = tied.num_weight_bytes - 4 * (tied_oracle.shape.num_parameters + 64 * 2 * 16)
    assert extra in (0, 4 * 160 * 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
def test_rms_norm_is_its_formula(dtype, scale):
    random = torch.Generator().manual_seed(7)
    x = (scale * torch.randn(5, 96, generator=random)).to(dtype)
    weight = torch.randn(96, generator=random).to(dtype)
    got = rms_norm(x, weight, torch.tensor(1e-5))
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert got.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(got.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_known_before_loading(oracle, tmp_path, dtype):
    planned = model_family("llama").planned_bytes(oracle.shape, dtype, CPU, 64)
    assert load(oracle, tmp_path, dtype).num_weight_bytes == planned
