"""Hugging Face directories written by transformers: one file, shards, other dtypes, damage."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from callboard.checkpoints.shape import Checkpoint
from callboard.errors import CorruptCheckpoint, UnsupportedModel
from callboard.models.load import load_model
from callboard.models.safetensors_loader import open_safetensors

TOKENS = torch.tensor([1, 17, 42, 99, 3, 158, 0, 64])


def load(path, oracle, progress=None):
    checkpoint = Checkpoint("here", "safetensors", str(path), "tiny")
    return load_model(checkpoint, oracle.shape, torch.float32, torch.device("cpu"), 64, progress)


def logits(model, attention):
    return model.compute_logits(model.forward(TOKENS, torch.arange(len(TOKENS)), attention))


def rewrite(path, change):
    """Apply `change` to the tensors of model.safetensors."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def test_shards_load_as_one_file_does(gqa_oracle, tmp_path, attention_factory):
    gqa_oracle.model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    seen = []
    model = load(tmp_path, gqa_oracle, lambda done, total: seen.append((done, total)))
    expected = gqa_oracle.model(TOKENS[None]).logits[0]
    torch.testing.assert_close(logits(model, attention_factory()), expected, atol=1e-4, rtol=1e-4)
    assert seen[-1] == (4 * gqa_oracle.shape.num_parameters, 4 * gqa_oracle.shape.num_parameters)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stored_dtypes_load_to_their_values(tied_oracle, tmp_path, attention_factory, dtype):
    for parameter in tied_oracle.model.parameters():
        parameter.copy_(parameter.to(dtype))
    tied_oracle.model.save_pretrained(tmp_path)
    expected = tied_oracle.model(TOKENS[None]).logits[0]
    rewrite(tmp_path, lambda tensors: tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()}))
    torch.testing.assert_close(logits(load(tmp_path, tied_oracle), attention_factory()), expected, atol=1e-4, rtol=1e-4)


def test_a_head_stored_beside_a_tied_embedding_is_ignored(tied_oracle, tmp_path, attention_factory):
    tied_oracle.model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(160, 64)}))
    expected = tied_oracle.model(TOKENS[None]).logits[0]
    torch.testing.assert_close(logits(load(tmp_path, tied_oracle), attention_factory()), expected, atol=1e-4, rtol=1e-4)


def test_stored_frequencies_of_old_checkpoints_are_ignored(tied_oracle, tmp_path):
    tied_oracle.model.save_pretrained(tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(8)}))
    load(tmp_path, tied_oracle)


def test_missing_tensors_are_named(gqa_oracle, tmp_path):
    gqa_oracle.model.save_pretrained(tmp_path)

    def drop(tensors):
        for layer in range(3):
            del tensors[f"model.layers.{layer}.self_attn.k_proj.weight"]
        del tensors["lm_head.weight"]

    rewrite(tmp_path, drop)
    with pytest.raises(CorruptCheckpoint, match=r"has no tensor lm_head\.weight, model\.layers\.0\..* and 1 more"):
        load(tmp_path, gqa_oracle)


def test_a_wrong_shape_is_named(gqa_oracle, tmp_path):
    gqa_oracle.model.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(95)}))
    with pytest.raises(CorruptCheckpoint, match=r"model\.norm\.weight has shape \[95\].*\[96\]"):
        load(tmp_path, gqa_oracle)


def test_a_bias_that_the_configuration_does_not_name_is_refused(gqa_oracle, tmp_path):
    gqa_oracle.model.save_pretrained(tmp_path)
    name = "model.layers.0.self_attn.q_proj.bias"
    rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(96)}))
    with pytest.raises(CorruptCheckpoint, match=r"does not know: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(tmp_path, gqa_oracle)


def test_shards_without_an_index_load_too(gqa_oracle, tmp_path, attention_factory):
    gqa_oracle.model.save_pretrained(tmp_path, max_shard_size="100KB")
    (tmp_path / "model.safetensors.index.json").unlink()
    expected = gqa_oracle.model(TOKENS[None]).logits[0]
    torch.testing.assert_close(logits(load(tmp_path, gqa_oracle), attention_factory()), expected, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_three_dtypes_loads_to_its_values(gqa_oracle, tmp_path, attention_factory):
    """Untied head in F16, layers in BF16, the rest in F32."""
    stored = {"lm_head": torch.float16, "model.layers": torch.bfloat16}
    for name, parameter in gqa_oracle.model.named_parameters():
        parameter.copy_(parameter.to(stored.get(name.rsplit(".", 1)[0][: len("model.layers")], torch.float32)))
    gqa_oracle.model.save_pretrained(tmp_path)

    def narrow(tensors):
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(stored.get(name.rsplit(".", 1)[0][: len("model.layers")], torch.float32))

    rewrite(tmp_path, narrow)
    dtypes = {str(tensor.dtype) for tensor in load_file(tmp_path / "model.safetensors").values()}
    assert dtypes == {"torch.float32", "torch.float16", "torch.bfloat16"}
    expected = gqa_oracle.model(TOKENS[None]).logits[0]
    torch.testing.assert_close(logits(load(tmp_path, gqa_oracle), attention_factory()), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "shown"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_a_quantized_dtype_is_refused(gqa_oracle, tmp_path, dtype, shown):
    gqa_oracle.model.save_pretrained(tmp_path)
    name = "model.layers.0.self_attn.q_proj.weight"
    rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(96, 96).to(dtype)}))
    with pytest.raises(UnsupportedModel, match=rf"q_proj\.weight' has dtype {shown}"):
        load(tmp_path, gqa_oracle)


@pytest.mark.parametrize("kept_bytes", [0, 5, 300, 20_000, -1])
def test_a_cut_off_file_is_refused(gqa_oracle, tmp_path, kept_bytes):
    gqa_oracle.model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors"):
        load(tmp_path, gqa_oracle)


def test_an_empty_directory_is_refused(gqa_oracle, tmp_path):
    with pytest.raises(CorruptCheckpoint, match="safetensors"):
        load(tmp_path, gqa_oracle)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "index"),
        ('{"metadata": {}}', "weight_map"),
        ('{"weight_map": {"model.norm.weight": "gone.safetensors"}}', "gone"),
        ('{"weight_map": {"no.such.weight": "model.safetensors"}}', r"no\.such\.weight"),
        (json.dumps({"weight_map": {"model.norm.weight": "../model.safetensors"}}), "not a file name"),
    ],
)
def test_an_index_that_does_not_hold_is_refused(gqa_oracle, tmp_path, index, message):
    gqa_oracle.model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CorruptCheckpoint, match=message):
        open_safetensors(str(tmp_path))
