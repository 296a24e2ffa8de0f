"""Weights of transformers' models packed for the CPU's kernels, and steps over a paged cache for them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from transformers import PreTrainedModel

from callboard.checkpoints.shape import ModelShape
from callboard.kernels.cpu.step_arguments import TILE_QUERIES, Step
from callboard.models.compiled_decoder import CompiledDecoder
from callboard.models.registry import model_family
from callboard.tests.kernels.cpu_matrices import pack, stored_weights
from callboard.tests.models.families import MAX_LEN

FAMILIES = {
    "llama-rope3": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2},
    "llama-biases": {},
    "mistral-window": {"num_hidden_layers": 2},
    "qwen2-tied": {},
    "qwen3": {"head_dim": 32},
    "gemma3": {"head_dim": 32},
}
"""Cases of `families`, with head sizes that the kernels take."""
BLOCK_SIZE = 8
BLOCKS_PER_ROW = MAX_LEN // BLOCK_SIZE
NUM_ROWS = 4
MATRICES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
NORMS = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
GEMMA_NORMS = {
    "input_norm": "input_layernorm",
    "after_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "after_mlp_norm": "post_feedforward_layernorm",
}


def round_matrices(oracle: PreTrainedModel, bits: int) -> None:
    """The oracle's matrices become the numbers that a format of so many bits holds, as far as float32 can say them."""
    for parameter in oracle.parameters():
        if parameter.ndim == 2:
            parameter.copy_(torch.from_numpy(stored_weights(pack(bits, parameter.numpy()))).float())


def round_rows(oracle: PreTrainedModel, activation_bits: int) -> None:
    """From now on the oracle's matrices take rows as integer formats do: of each 32 numbers the nearest of 127 steps up
    to the largest, or of 16319 if it is 5 times the row's root mean square, or if there are 15 bits."""

    def rounded(_module: torch.nn.Module, arguments: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        x = arguments[0].double()
        groups = x.unflatten(-1, (-1, 32))
        largest = groups.abs().amax(-1, keepdim=True)
        is_fine = (largest >= 5 * x.square().mean(-1).sqrt()[..., None, None]) | (activation_bits == 15)
        step = largest / torch.where(is_fine, 16319.0, 127.0)
        return (((groups / step).round() * step).nan_to_num(0.0).flatten(-2).float(),)

    for module in oracle.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)


def pack_decoder(
    oracle: PreTrainedModel, shape: ModelShape, bits: int, num_threads: int, activation_bits: int = 8
) -> CompiledDecoder:
    """The oracle's weights, by their names in transformers."""
    state = {name: tensor.float().numpy() for name, tensor in oracle.state_dict().items()}
    is_gemma = shape.architecture.startswith("gemma")

    def norm(name: str) -> np.ndarray:
        return state[f"{name}.weight"] + np.float32(is_gemma)

    def matrix(*names: str):
        packed = pack(bits, np.concatenate([state[f"{name}.weight"] for name in names]))
        biases = [state[f"{name}.bias"] for name in names if f"{name}.bias" in state]
        return packed.with_bias(np.concatenate(biases)) if biases else packed

    def layer(prefix: str) -> SimpleNamespace:
        fields = {field: matrix(*(prefix + name for name in names)) for field, names in MATRICES.items()}
        fields |= dict.fromkeys(("head_norm", "after_attention_norm", "after_mlp_norm"), ())
        fields |= {field: norm(prefix + name) for field, name in (GEMMA_NORMS if is_gemma else NORMS).items()}
        if f"{prefix}self_attn.q_norm.weight" in state:
            divisor = getattr(oracle.config, "query_pre_attn_scalar", shape.head_dim)
            query = norm(f"{prefix}self_attn.q_norm") * np.float32((shape.head_dim / divisor) ** 0.5)
            key = norm(f"{prefix}self_attn.k_norm")
            fields["head_norm"] = np.stack([query] * shape.num_heads + [key] * shape.num_kv_heads)
        return SimpleNamespace(**fields)

    embedding = matrix("model.embed_tokens")
    weights = SimpleNamespace(
        embedding=embedding,
        head=embedding if shape.tie_word_embeddings else matrix("lm_head"),
        layers=[layer(f"model.layers.{index}.") for index in range(shape.num_layers)],
        final_norm=norm("model.norm"),
    )
    return CompiledDecoder(shape, model_family(shape.architecture), weights, MAX_LEN, num_threads, activation_bits)


def make_cache(shape: ModelShape, dtype: type[np.generic]) -> np.ndarray:
    """Room for NUM_ROWS rows; a slot that is read unwritten shows up in every number."""
    size = (shape.num_layers, 2, NUM_ROWS * BLOCKS_PER_ROW, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)
    return np.full(size, np.nan if dtype == np.float32 else 0x7FC0, dtype)


def make_step(shape: ModelShape, pieces: Sequence[tuple[int, int, Sequence[int]]]) -> Step:
    """pieces: (row, position of its first token, tokens), one a row. Blocks are scattered, the same at each call."""
    blocks = np.random.default_rng(0).permutation(NUM_ROWS * BLOCKS_PER_ROW).astype(np.int32)
    tables = blocks.reshape(NUM_ROWS, BLOCKS_PER_ROW)
    most = TILE_QUERIES // (shape.num_heads // shape.num_kv_heads)
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    parts: list[tuple[int, int, int]] = []
    for index, (row, start, tokens) in enumerate(pieces):
        first = len(token_ids)
        parts += [(index, first + at, min(most, len(tokens) - at)) for at in range(0, len(tokens), most)]
        token_ids += tokens
        for position in range(start, start + len(tokens)):
            positions.append(position)
            slots.append(int(tables[row, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE)
    return Step(
        token_ids=np.array(token_ids, np.int64),
        positions=np.array(positions, np.int64),
        slots=np.array(slots, np.int64),
        block_tables=tables,
        table_rows=np.array([row for row, _, _ in pieces], np.int32),
        pieces=np.array(parts, np.int32),
    )


def run_steps(
    decoder: CompiledDecoder, cache: np.ndarray, steps: Sequence[Sequence[tuple[int, int, Sequence[int]]]]
) -> dict[int, np.ndarray]:
    """Row -> float32 [its tokens in all steps, vocab_size]."""
    logits: dict[int, list[np.ndarray]] = {}
    for pieces in steps:
        step_logits = decoder.compute_logits(decoder.forward(make_step(decoder.shape, pieces), cache))
        at = 0
        for row, _, tokens in pieces:
            logits.setdefault(row, []).append(step_logits[at : at + len(tokens)].copy())
            at += len(tokens)
        assert at == len(step_logits)
    return {row: np.concatenate(parts) for row, parts in logits.items()}
