"""Tiny random Llamas made by transformers (the oracle of this folder), and an attention with a contiguous cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from callboard.checkpoints.shape import ModelShape

CONFIGS = {
    "mha-tied": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "gqa-untied": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 96},
    "mqa-tied": {"num_attention_heads": 4, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "wide-heads": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 48, "rope_theta": 500000.0},
    "narrow-heads": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-3},
}


class Oracle(NamedTuple):
    """A transformers model and the shape that describes it."""

    model: LlamaForCausalLM
    shape: ModelShape


def make_oracle(name: str) -> Oracle:
    """Random weights large enough that a wrong order, norm or angle moves the logits by far more than a tolerance."""
    settings = {
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        "attn_implementation": "eager",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    } | CONFIGS[name]
    theta = settings["rope_theta"]
    torch.manual_seed(sum(name.encode()))
    model = LlamaForCausalLM(LlamaConfig(**settings)).eval().requires_grad_(False)
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name:
            parameter.copy_(1 + 0.3 * torch.randn(parameter.shape))
    config = model.config
    shape = ModelShape(
        architecture="llama",
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        rope_theta=theta,
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.tie_word_embeddings,
        bos_token_id=1,
        eos_token_ids=(2,),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
    return Oracle(model, shape)


class ContiguousAttention:
    """Causal attention of one sequence by the textbook formula; all keys and values so far are one tensor a layer.

    `windows`: by layer, how many tokens one sees, itself included; empty: all before it.
    """

    def __init__(self, windows: Sequence[int | None] = ()) -> None:
        self.windows = windows
        self.cache: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self.cache:
            k, v = torch.cat((self.cache[layer][0], k)), torch.cat((self.cache[layer][1], v))
        self.cache[layer] = (k, v)
        repeats = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(repeats, 1).float(), v.repeat_interleave(repeats, 1).float()
        scores = torch.einsum("qhd,khd->hqk", q.float(), keys) / q.shape[2] ** 0.5
        visible = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        if self.windows and (window := self.windows[layer]) is not None:
            visible &= torch.ones(len(q), len(k), dtype=torch.bool).triu(len(k) - len(q) - window + 1)
        weights = F.softmax(scores.masked_fill(~visible, float("-inf")), -1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(len(q), -1).to(q.dtype)


def llama_cpp_order(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's converter stores them: of each head (half, i) -> (i, half)."""
    rows, columns = weight.shape
    stored = np.empty_like(weight)
    head_dim = rows // num_heads
    for head in range(num_heads):
        for half in range(2):
            for i in range(head_dim // 2):
                source = head * head_dim + half * (head_dim // 2) + i
                stored[head * head_dim + 2 * i + half] = weight[source]
    assert stored.shape == (rows, columns)
    return stored


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{GGUF_NAMES[part]}.weight"
    return f"{GGUF_NAMES[stem]}.weight"


def model_tensors(oracle: Oracle) -> dict[str, Tensor]:
    """Its tensors by the names of Hugging Face, a tied head left out."""
    tied = oracle.shape.tie_word_embeddings
    return {n: t for n, t in oracle.model.state_dict().items() if not (tied and n == "lm_head.weight")}


def write_gguf(path: Path, oracle: Oracle, kind: str, tensors: dict[str, Tensor] | None = None) -> None:
    """The model as a GGUF file, matrices stored as `kind`, vectors as F32."""
    quantization = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(oracle.shape.num_layers)
    writer.add_token_list([f"token{i}" for i in range(oracle.shape.vocab_size)])
    for name, tensor in (model_tensors(oracle) if tensors is None else tensors).items():
        array = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = oracle.shape.num_heads if "q_proj" in name else oracle.shape.num_kv_heads
            array = llama_cpp_order(array, heads)
        if array.ndim == 1 or kind == "F32":
            writer.add_tensor(gguf_name(name), array)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(params=CONFIGS)
def oracle(request: pytest.FixtureRequest) -> Oracle:
    return make_oracle(request.param)


@pytest.fixture
def gqa_oracle() -> Oracle:
    return make_oracle("gqa-untied")


@pytest.fixture
def tied_oracle() -> Oracle:
    return make_oracle("mha-tied")


@pytest.fixture
def attention_factory() -> Callable[[], ContiguousAttention]:
    return ContiguousAttention


@pytest.fixture
def gguf_writer() -> Callable[..., None]:
    return write_gguf


@pytest.fixture
def tensors_of() -> Callable[[Oracle], dict[str, Tensor]]:
    return model_tensors


@pytest.fixture(autouse=True)
def inference_mode() -> Iterator[None]:
    with torch.inference_mode():
        yield
