"""Tiny draft heads as they are published, and what they draft by the formulas alone: dense attention over the whole
text, from transformers' hidden states."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, INTERMEDIATE, EPS, THETA = 4, 2, 16, 80, 1e-5, 5000.0
NEAR_TIE = 1e-4
DRAFT_VOCAB, MEDUSA_HEADS, MEDUSA_LAYERS = 90, 3, 2
Tensors = dict[str, Tensor]


def _layer(hidden: int, wide: int, prefix: str, *, bias: bool = False, input_norm: bool = True) -> Tensors:
    query, key = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    sizes = {
        "self_attn.q_proj": (query, wide),
        "self_attn.k_proj": (key, wide),
        "self_attn.v_proj": (key, wide),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (INTERMEDIATE, hidden),
        "mlp.up_proj": (INTERMEDIATE, hidden),
        "mlp.down_proj": (hidden, INTERMEDIATE),
    }
    made = {prefix + name + ".weight": torch.randn(size) * 0.2 for name, size in sizes.items()}
    for name in ("post_attention_layernorm", *(("input_layernorm",) if input_norm else ())):
        made[f"{prefix}{name}.weight"] = 1 + 0.3 * torch.randn(hidden)
    if bias:
        for name in ("q", "k", "v"):
            made[f"{prefix}self_attn.{name}_proj.bias"] = 0.3 * torch.randn(sizes[f"self_attn.{name}_proj"][0])
    return made


def make_tensors(method: str, oracle: PreTrainedModel) -> Tensors:
    """Random ones, so large that a wrong order or angle moves the logits by far more than rounding."""
    torch.manual_seed(sum(method.encode()))
    hidden, vocab = oracle.config.hidden_size, oracle.config.vocab_size
    match method:
        case "eagle":  # the layer has no norm before its attention
            own = {
                "embed_tokens.weight": torch.randn(vocab, hidden),
                "fc.weight": torch.randn(hidden, 2 * hidden) * 0.2,
            }
            return {**own, "fc.bias": torch.randn(hidden), **_layer(hidden, hidden, "layers.0.", input_norm=False)}
        case "eagle3":
            kept = torch.randperm(vocab)[:DRAFT_VOCAB].sort().values
            return {
                "d2t": kept - torch.arange(DRAFT_VOCAB),
                "t2d": torch.isin(torch.arange(vocab), kept),
                "fc.weight": torch.randn(hidden, 3 * hidden) * 0.2,
                "midlayer.hidden_norm.weight": 1 + 0.3 * torch.randn(hidden),
                "norm.weight": 1 + 0.3 * torch.randn(hidden),
                "lm_head.weight": torch.randn(DRAFT_VOCAB, hidden) * 0.3,
                **_layer(hidden, 2 * hidden, "midlayer."),
            }
        case "mtp":
            names = ("token_layernorm", "hidden_layernorm", "final_layernorm")
            norms = {f"{name}.weight": 1 + 0.3 * torch.randn(hidden) for name in names}
            own = {"input_proj.weight": torch.randn(hidden, 2 * hidden) * 0.2, **norms}
            layer = {**own, **_layer(hidden, hidden, "", bias=True)}
            return {f"model.mtp_layers.0.{name}": tensor for name, tensor in layer.items()}
    heads: Tensors = {}
    for head in range(MEDUSA_HEADS):
        for j in range(MEDUSA_LAYERS):
            heads[f"{head}.{j}.linear.weight"] = torch.randn(hidden, hidden) * 0.2
            heads[f"{head}.{j}.linear.bias"] = torch.randn(hidden) * 0.2
        heads[f"{head}.{MEDUSA_LAYERS}.weight"] = torch.randn(vocab, hidden) * 0.3
    return heads


def write_head(method: str, oracle: PreTrainedModel, path: Path, taps: Sequence[int] = ()) -> Tensors:
    """The directory as its authors publish it; taps: layers that the configuration of an EAGLE-3 names. Returns the
    tensors."""
    tensors = make_tensors(method, oracle)
    path.mkdir(exist_ok=True)
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLMEagle3" if method == "eagle3" else "LlamaForCausalLM"],
        "hidden_size": oracle.config.hidden_size,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": oracle.config.vocab_size,
        "max_position_embeddings": 256,
    }
    match method:
        case "medusa":
            config = {"medusa_num_heads": MEDUSA_HEADS, "medusa_num_layers": MEDUSA_LAYERS, "base_model": "x"}
            save_file(tensors, path / "medusa_lm_head.safetensors")
        case _:
            save_file(tensors, path / "model.safetensors")
    if method == "eagle3":
        config["draft_vocab_size"] = DRAFT_VOCAB
        if taps:
            config["eagle_aux_hidden_state_layer_ids"] = list(taps)
    (path / "config.json").write_text(json.dumps(config))
    return tensors


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight


def _turn(heads: Tensor, positions: Tensor, theta: float) -> Tensor:
    """[t, heads, head_dim]: pairs (i, i + half) as complex numbers, turned."""
    half = heads.shape[-1] // 2
    angles = positions[:, None].double() * theta ** (-torch.arange(half).double() / half)
    pairs = torch.complex(heads[..., :half].double(), heads[..., half:].double())
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), -1).float()


def _run_layer(x: Tensor, beside: Tensor, tensors: Tensors, sizes: tuple[int, int], theta: float) -> Tensor:
    """Causal attention over all elements, which stand at positions 0 and on."""
    num_heads, head_dim = sizes

    def linear(y: Tensor, name: str) -> Tensor:
        return F.linear(y, tensors[name + ".weight"], tensors.get(name + ".bias"))

    count, positions = len(x), torch.arange(len(x))
    q, k, v = (linear(x, f"self_attn.{name}_proj").view(count, -1, head_dim) for name in ("q", "k", "v"))
    q, k = _turn(q, positions, theta), _turn(k, positions, theta)
    groups = num_heads // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
    scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), -torch.inf)
    attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(count, -1)
    hidden = beside + linear(attended, "self_attn.o_proj")
    y = _norm(hidden, tensors["post_attention_layernorm.weight"])
    return hidden + linear(F.silu(linear(y, "mlp.gate_proj")) * linear(y, "mlp.up_proj"), "mlp.down_proj")


def expected_drafts(
    method: str, oracle: PreTrainedModel, tensors: Tensors, known: Sequence[int], count: int
) -> list[int]:
    """Greedy ones behind the known tokens, each element of the whole chain computed anew at every place; up to the one
    whose two likeliest tokens are too near to each other to tell."""
    tokens = list(known)
    with torch.inference_mode():
        found = oracle(torch.tensor([tokens[:-1]]), use_cache=False, output_hidden_states=True)
        states = [state[0] for state in found.hidden_states]  # in front of each layer; the last one is normed
        if method == "medusa":
            return [_medusa(tensors, states[-1][-1], head) for head in range(min(count, MEDUSA_HEADS))]
        made: list[Tensor] = []
        for _ in range(count):
            out, logits = _elements(method, oracle, tensors, tokens, states, made)
            if float(logits.topk(2).values @ torch.tensor([1.0, -1.0])) < NEAR_TIE:
                break
            made.append(out)
            tokens.append(int(logits.argmax()))
    return tokens[len(known) :]


def _medusa(tensors: Tensors, x: Tensor, head: int) -> int:
    for j in range(MEDUSA_LAYERS):
        x = x + F.silu(tensors[f"{head}.{j}.linear.weight"] @ x + tensors[f"{head}.{j}.linear.bias"])
    return int((tensors[f"{head}.{MEDUSA_LAYERS}.weight"] @ x).argmax())


def _elements(
    method: str, oracle: PreTrainedModel, tensors: Tensors, tokens: list[int], states: list[Tensor], made: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """(what is made of the last element, its logits over the target's vocabulary)"""
    embedding, head = oracle.get_input_embeddings().weight, oracle.get_output_embeddings().weight
    own_sizes = NUM_HEADS, HEAD_DIM
    match method:
        case "eagle":
            features = torch.cat((states[-1], torch.stack(made))) if made else states[-1]
            embedded = tensors["embed_tokens.weight"][tokens[1:]]
            x = torch.cat((embedded, features), -1) @ tensors["fc.weight"].T + tensors["fc.bias"]
            layer = {name.removeprefix("layers.0."): tensor for name, tensor in tensors.items()}
            out = _run_layer(x, x, layer, own_sizes, THETA)[-1]
            return out, head @ out
        case "eagle3":
            n = oracle.config.num_hidden_layers
            three = torch.cat([states[layer] for layer in (2, n // 2, n - 3)], -1) @ tensors["fc.weight"].T
            features = torch.cat((three, torch.stack(made))) if made else three
            layer = {name.removeprefix("midlayer."): tensor for name, tensor in tensors.items()}
            embedded = _norm(embedding[tokens[1:]], layer["input_layernorm.weight"])
            x = torch.cat((embedded, _norm(features, layer["hidden_norm.weight"])), -1)
            out = _run_layer(x, features, layer, own_sizes, THETA)[-1]
            own = tensors["lm_head.weight"] @ _norm(out, tensors["norm.weight"])
            logits = torch.full((len(embedding),), -torch.inf)
            for index, value in enumerate(own):
                logits[index + int(tensors["d2t"][index])] = value
            return out, logits
    features = torch.cat((states[-1], torch.stack(made))) if made else states[-1]
    layer = {name.removeprefix("model.mtp_layers.0."): tensor for name, tensor in tensors.items()}
    embedded = embedding[tokens[1:]].clone()
    embedded[0] = 0
    normed = _norm(features, layer["hidden_layernorm.weight"]), _norm(embedded, layer["token_layernorm.weight"])
    x = torch.cat(normed, -1) @ layer["input_proj.weight"].T
    config = oracle.config
    sizes = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    before = _norm(x, layer["input_layernorm.weight"])
    out = _norm(
        _run_layer(before, x, layer, sizes, config.rope_parameters["rope_theta"])[-1], layer["final_layernorm.weight"]
    )
    return out, head @ out
