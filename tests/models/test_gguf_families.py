"""GGUF files of every family, written by the conventions of llama.cpp's converter, against the model they came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from callboard.checkpoints import GGUFFile, ModelShape, read_shape, resolve_checkpoint
from callboard.checkpoints.architectures import GGUF_ARCHITECTURES
from callboard.errors import CorruptCheckpoint, UnsupportedModel
from callboard.models.load import load_model
from callboard.models.protocol import CausalLM
from callboard.tests.models.families import MAX_LEN, WINDOW, make_oracle, make_prompt, oracle_logits

PROMPT = make_prompt(0, 4 * WINDOW)
PERMUTED = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
Extra = Callable[[gguf.GGUFWriter], None]
CONVERTED = [
    ("llama-rope3", "llama"),
    ("llama-linear", "llama"),
    ("llama-biases", "llama"),
    ("mistral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen2-tied", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3-biases", "qwen3"),
    ("gemma3-gguf", "gemma3"),
    ("gemma3-no-window", "gemma3"),
]
"""Case, and the architecture that the converter makes of it."""


def frequency_factors(oracle: PreTrainedModel) -> np.ndarray:
    """By what each frequency is slowed down: the unscaled over transformers' scaled ones."""
    config = oracle.config
    theta = config.rope_parameters["rope_theta"]
    unscaled = 1.0 / theta ** (torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
    return (unscaled / oracle.model.rotary_emb.inv_freq).numpy()


def converted(name: str, tensor: torch.Tensor, oracle: PreTrainedModel, architecture: str) -> np.ndarray:
    """What the converter stores: a `llama` interleaves the halves of q and k, a `gemma3` has norms plus one."""
    array: np.ndarray = tensor.float().numpy()
    if architecture == "llama" and name.endswith(PERMUTED):
        config = oracle.config
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return array + 1.0
    return array


def write(path: Path, oracle: PreTrainedModel, architecture: str, extra: Extra | None = None) -> None:
    """F32, names by the gguf package's own table."""
    config = oracle.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    ropes = config.rope_parameters
    writer.add_rope_freq_base(ropes.get("full_attention", ropes)["rope_theta"])
    writer.add_token_list([f"token{index}" for index in range(config.vocab_size)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if extra is not None:
        extra(writer)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in oracle.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        writer.add_tensor(gguf_name, converted(name, tensor, oracle, architecture))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(path: Path) -> tuple[ModelShape, CausalLM]:
    checkpoint = resolve_checkpoint(str(path))
    shape = read_shape(checkpoint)
    return shape, load_model(checkpoint, shape, torch.float32, torch.device("cpu"), MAX_LEN)


def linear(architecture: str, factor: float) -> Extra:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(factor)

    return extra


def rope_freqs(oracle: PreTrainedModel) -> Extra:
    return lambda writer: writer.add_tensor("rope_freqs.weight", frequency_factors(oracle))


@pytest.mark.parametrize(("name", "architecture"), CONVERTED)
def test_logits_are_those_of_the_model_that_was_converted(tmp_path, attention_factory, name, architecture):
    oracle = make_oracle(name)
    extra = None
    if name == "llama-rope3":
        extra = rope_freqs(oracle)
    elif name == "llama-linear":
        extra = linear("llama", 4.0)
    elif name == "gemma3-gguf":  # every sixth layer sees everything; only those turn slower
        extra = lambda writer: (writer.add_sliding_window(WINDOW), linear("gemma3", 8.0)(writer))  # noqa: E731
    write(tmp_path / "tiny.gguf", oracle, architecture, extra)
    shape, model = load(tmp_path / "tiny.gguf")
    assert shape.architecture == architecture
    assert shape.num_parameters == sum(parameter.numel() for parameter in oracle.parameters())
    ids = torch.tensor(PROMPT)
    attention = attention_factory(shape.windows)
    logits = model.compute_logits(model.forward(ids, torch.arange(len(ids)), attention))
    torch.testing.assert_close(logits, oracle_logits(oracle, PROMPT), atol=5e-4, rtol=5e-4)


def test_every_architecture_is_converted():
    assert {architecture for _, architecture in CONVERTED} == set(GGUF_ARCHITECTURES)


def test_the_shape_of_gemma3_has_what_its_files_leave_out(tmp_path):
    oracle = make_oracle("gemma3-gguf")
    write(tmp_path / "tiny.gguf", oracle, "gemma3", lambda writer: writer.add_sliding_window(WINDOW))
    shape = read_shape(resolve_checkpoint(str(tmp_path / "tiny.gguf")))
    assert shape.windows == tuple(WINDOW if kind == "sliding_attention" else None for kind in oracle.config.layer_types)
    assert (shape.rope_theta, shape.window_rope_theta, shape.query_divisor) == (1e6, 1e4, None)


def test_gemma3_27b_is_known_by_its_62_layers():
    """Its config.json states query_pre_attn_scalar 168: 5,376 / 32."""
    from callboard.checkpoints.gguf_shape import _with_gemma3_layers

    shape = ModelShape("gemma3", 62, 5376, 32, 16, 128, 21504, 262208, 131072, 1e6, 1e-6, True, 2, (1,), 0)
    file = GGUFFile("x.gguf", {"gemma3.attention.sliding_window": 1024}, {})
    described = _with_gemma3_layers(file, shape)
    assert described.query_divisor == 168.0
    assert described.windows[:7] == (1024,) * 5 + (None, 1024)


@pytest.mark.parametrize(
    ("architecture", "extra", "says"),
    [
        ("qwen2", lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), r"qwen2\.rope\.scaling\.type 'yarn'"),
        ("qwen2", lambda w: w.add_sliding_window(100), r"qwen2\.attention\.sliding_window"),
        ("gemma3", lambda w: w.add_final_logit_softcapping(30.0), "final_logit_softcapping"),
        ("qwen3", lambda w: w.add_causal_attention(False), "causal"),
        ("qwen3", lambda w: w.add_tensor("rope_factors_long.weight", np.ones(8, np.float32)), "rope_factors_long"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, architecture, extra, says):
    oracle = make_oracle({"qwen2": "qwen2", "qwen3": "qwen3-biases", "gemma3": "gemma3-no-window"}[architecture])
    write(tmp_path / "tiny.gguf", oracle, architecture, extra)
    with pytest.raises(UnsupportedModel, match=says):
        read_shape(resolve_checkpoint(str(tmp_path / "tiny.gguf")))


@pytest.mark.parametrize("factors", [np.zeros(8, np.float32), np.ones(7, np.float32), np.full(8, np.nan, np.float32)])
def test_factors_that_give_no_rotation_are_corrupt(tmp_path, factors):
    oracle = make_oracle("llama-rope3")
    write(tmp_path / "tiny.gguf", oracle, "llama", lambda writer: writer.add_tensor("rope_freqs.weight", factors))
    with pytest.raises(CorruptCheckpoint, match="rope"):
        read_shape(resolve_checkpoint(str(tmp_path / "tiny.gguf")))
