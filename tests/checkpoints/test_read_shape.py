"""Shapes read from both formats; what is refused, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from callboard.checkpoints import (
    SUPPORTED_ARCHITECTURES,
    ModelShape,
    read_safetensors_directory,
    read_shape,
    resolve_checkpoint,
)
from callboard.errors import CorruptCheckpoint, UnsupportedModel

Write = Callable[..., Path]


def shape_of(path: Path) -> ModelShape:
    return read_shape(resolve_checkpoint(str(path)))


def expected_shape(is_tied: bool, num_parameters: int) -> ModelShape:
    return ModelShape(
        architecture="llama",
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=40,
        max_position=128,
        rope_theta=50_000.0,
        rms_norm_eps=pytest.approx(1e-5, rel=1e-6),
        tie_word_embeddings=is_tied,
        bos_token_id=1,
        eos_token_ids=(2,),
        num_parameters=num_parameters,
    )


@pytest.mark.parametrize("is_tied", [True, False])
def test_gguf(write_gguf: Write, is_tied: bool) -> None:
    path = write_gguf(is_tied=is_tied)
    num_elements = sum(tensor.n_elements for tensor in gguf.GGUFReader(path).tensors)
    assert shape_of(path) == expected_shape(is_tied, num_elements)


@pytest.mark.parametrize("is_tied", [True, False])
def test_directory(write_directory: Write, is_tied: bool) -> None:
    directory = write_directory(is_tied=is_tied)
    num_elements = sum(array.size for array in load_file(directory / "model.safetensors").values())
    assert shape_of(directory) == expected_shape(is_tied, num_elements)


def test_smollm2(smollm2_gguf: Path) -> None:
    shape = shape_of(smollm2_gguf)
    assert (shape.num_layers, shape.hidden_size, shape.num_heads, shape.num_kv_heads) == (30, 576, 9, 3)
    assert (shape.head_dim, shape.intermediate_size, shape.vocab_size) == (64, 1536, 49_152)
    assert (shape.max_position, shape.rope_theta, shape.tie_word_embeddings) == (8192, 100_000.0, True)
    assert (shape.bos_token_id, shape.eos_token_ids, shape.num_parameters) == (1, (2,), 134_515_008)


def test_a_tied_head_that_was_saved_counts_once(write_directory: Write) -> None:
    directory = write_directory(is_tied=True)
    without = shape_of(directory).num_parameters
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    save_file(weights, directory / "model.safetensors")
    assert shape_of(directory).num_parameters == without


def test_rope_theta_of_both_generations_and_defaults(write_directory: Write) -> None:
    new = write_directory("new", drop=("rope_theta",), rope_parameters={"rope_theta": 7e5, "rope_type": "default"})
    old = write_directory("old", rope_scaling=None)
    none = write_directory("none", drop=("rope_theta",))
    assert [shape_of(directory).rope_theta for directory in (new, old, none)] == [7e5, 50_000.0, 10_000.0]


@pytest.mark.slow
def test_a_config_written_by_transformers_is_read(write_directory: Write) -> None:
    transformers = pytest.importorskip("transformers")
    directory = write_directory()
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(directory)
    shape = shape_of(directory)
    assert (shape.head_dim, shape.rms_norm_eps, shape.rope_theta) == (config.head_dim, config.rms_norm_eps, 10_000.0)
    assert (shape.bos_token_id, shape.eos_token_ids) == (config.bos_token_id, (config.eos_token_id,))


def test_end_ids_of_both_files_are_joined(write_directory: Write) -> None:
    directory = write_directory(eos_token_id=[5, 2])
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 9]}))
    assert shape_of(directory).eos_token_ids == (5, 2, 9)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_scaling", {"rope_type": "dynamic", "factor": 8.0}),
        ("rope_scaling", {"type": "longrope", "factor": 2.0}),
        ("sliding_window", 4096),
        ("partial_rotary_factor", 0.5),
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "gptq"}),
    ],
)
def test_unsupported_fields_are_named(write_directory: Write, field: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=field):
        shape_of(write_directory(**{field: value}))


@pytest.mark.parametrize("field", ["attention_bias", "mlp_bias"])
def test_a_bias_that_the_configuration_names_must_be_there(write_directory: Write, field: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"_proj\.bias' is missing"):
        shape_of(write_directory(**{field: True}))


def test_a_bias_that_the_configuration_does_not_name_is_refused(write_directory: Write) -> None:
    directory = write_directory()
    weights = load_file(directory / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.bias"] = np.ones(96, np.float32)
    save_file(weights, directory / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"up_proj\.bias' is not part of the llama model"):
        shape_of(directory)


@pytest.mark.parametrize("name", ["Qwen2MoeForCausalLM", "MixtralForCausalLM"])
def test_another_architecture_of_a_directory_is_named_with_the_list(write_directory: Write, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"{name}.*supported architectures: llama \(LlamaForCausalLM\)"):
        shape_of(write_directory(architectures=[name]))


def test_another_architecture_of_a_gguf_is_named_with_the_list(write_gguf: Write) -> None:
    assert SUPPORTED_ARCHITECTURES == ("llama", "mistral", "qwen2", "qwen3", "gemma3")
    with pytest.raises(UnsupportedModel, match=r"'falcon'.*supported architectures: llama"):
        shape_of(write_gguf(architecture="falcon"))


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), r"rope\.scaling\.type"),
        (lambda w: w.add_sliding_window(512), r"attention\.sliding_window"),
        (lambda w: w.add_expert_count(8), "expert_count"),
        (lambda w: w.add_rope_dimension_count(8), r"rope\.dimension_count"),
        (lambda w: w.add_uint16("split.count", 3), "split"),
        (lambda w: w.add_tensor("rope_factors_short.weight", np.ones(8, np.float32)), "rope_factors_short"),
        (lambda w: w.add_tensor("blk.0.attn_k.bias", np.ones(32, np.float32)), r"attn_k\.bias"),
    ],
)
def test_unsupported_features_of_a_gguf_are_named(
    write_gguf: Write, extra: Callable[[gguf.GGUFWriter], None], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=says):
        shape_of(write_gguf(extra=extra))


def test_an_unsupported_tensor_type_is_named_with_the_tensor(write_gguf: Write) -> None:
    path = write_gguf(quantization=gguf.GGMLQuantizationType.MXFP4)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.\S+ has type MXFP4.*BF16, F16, F32, IQ4_NL.*Q4_K.*Q8_0"):
        shape_of(path)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_up.weight", "output_norm.weight"])
def test_a_missing_tensor_is_corrupt(write_gguf: Write, name: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=f"'{name}' is missing"):
        shape_of(write_gguf(skip=name))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("num_hidden_layers", 3, r"model\.layers\.2\S+ is missing"),
        ("intermediate_size", 95, "has shape"),
        ("num_key_value_heads", 3, "multiple"),
        ("num_key_value_heads", 0, "num_kv_heads"),
        ("num_attention_heads", 0, "num_heads"),
        ("num_hidden_layers", 10**15, "num_layers"),
        ("hidden_size", "64", "hidden_size"),
        ("vocab_size", -1, "vocab_size"),
        ("eos_token_id", 40, "eos token id 40"),
        ("rms_norm_eps", 0.0, "rms_norm_eps"),
    ],
)
def test_numbers_that_do_not_fit_are_corrupt(write_directory: Write, field: str, value: object, says: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=says):
        shape_of(write_directory(**{field: value}))


def test_a_truncated_safetensors_file_is_corrupt(write_directory: Write) -> None:
    file = write_directory() / "model.safetensors"
    content = file.read_bytes()
    for num_bytes in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:num_bytes])
        with pytest.raises(CorruptCheckpoint):
            shape_of(file.parent)


def test_shards_are_those_of_the_index(write_directory: Write) -> None:
    directory = write_directory()
    weights = load_file(directory / "model.safetensors")
    names = sorted(weights)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in halves.items():
        save_file({name: weights[name] for name in part}, directory / shard)
    index = {"weight_map": {name: shard for shard, part in halves.items() for name in part}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    # The whole file lies there too: without the index every tensor would stand there twice.
    assert {name: tensor.shape for name, tensor in read_safetensors_directory(str(directory)).items()} == {
        name: array.shape for name, array in weights.items()
    }
    assert shape_of(directory).num_layers == 2
    (directory / "b.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match=r"b\.safetensors, which is not there"):
        shape_of(directory)


def test_a_shard_outside_of_the_directory_is_refused(write_directory: Write) -> None:
    directory = write_directory()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    with pytest.raises(CorruptCheckpoint, match="not a file name"):
        shape_of(directory)


def test_an_unsupported_dtype_is_named(write_directory: Write) -> None:
    directory = write_directory()
    weights = load_file(directory / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].astype(np.float64)
    save_file(weights, directory / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight' has dtype F64"):
        shape_of(directory)


def test_a_malformed_config_is_corrupt(write_directory: Write) -> None:
    directory = write_directory()
    (directory / "config.json").write_text("{not json")
    with pytest.raises(CorruptCheckpoint, match=r"config\.json is malformed"):
        shape_of(directory)
