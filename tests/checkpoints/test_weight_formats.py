"""Which form a matrix is held in, and what that takes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.checkpoints import read_shape, resolve_checkpoint
from callboard.checkpoints.model_weights import model_weights
from callboard.checkpoints.shape import ModelShape
from callboard.checkpoints.weight_formats import held_bits, packed_bytes, packed_dtype, stored_types

Q, K, V = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")
OUTPUT, DOWN, EMBEDDING = (
    "model.layers.0.self_attn.o_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.embed_tokens.weight",
)


@pytest.fixture
def shape(tiny_llama_dir: Path) -> ModelShape:
    return read_shape(resolve_checkpoint(str(tiny_llama_dir)))


def test_a_real_file_is_int4_with_its_embedding_in_int8(smollm2_gguf: Path) -> None:
    checkpoint = resolve_checkpoint(str(smollm2_gguf))
    shape = read_shape(checkpoint)
    stored = stored_types(checkpoint, shape)
    assert (stored[Q], stored[EMBEDDING]) == ("Q4_1", "Q8_0")
    assert packed_dtype(stored) == "int4"
    bits = held_bits("int4", shape, stored)
    assert bits[Q] == bits[DOWN] == 4 and bits[EMBEDDING] == 8
    # 210 matrices of Q4_1 and the Q8_0 embedding: blocks of 20 and 34 bytes in the file, of 20 and 36 here
    sizes = {names[1]: size for names, size in model_weights(shape).items() if len(size) == 2}
    assert (
        sum(packed_bytes(*size, bits[name]) for name, size in sizes.items() if name != EMBEDDING)
        == 106_168_320 * 20 // 32
    )
    assert packed_bytes(*sizes[EMBEDDING], 8) == 49_152 * 576 * 36 // 32


def test_matrices_that_are_held_as_one_have_the_bits_of_the_widest(shape: ModelShape) -> None:
    bits = held_bits("int4", _with_groups(shape), {Q: "Q4_K", K: "Q4_K", V: "Q6_K", OUTPUT: "Q4_K", DOWN: "Q6_K"})
    assert [bits[name] for name in (Q, K, V, OUTPUT, DOWN)] == [8, 8, 8, 4, 8]


@pytest.mark.parametrize(
    ("kinds", "dtype"), [(("Q4_0", "F32"), "int4"), (("Q8_0",), "int8"), (("Q6_K",), "int8"), (("BF16",), None)]
)
def test_the_packed_dtype_is_that_of_the_layers(kinds: tuple[str, ...], dtype: str | None) -> None:
    stored = {f"model.layers.{index}.mlp.up_proj.weight": kind for index, kind in enumerate(kinds)}
    assert packed_dtype({**stored, EMBEDDING: "Q4_0"}) == dtype


def test_what_is_not_quantized_is_rounded_to_the_dtype_that_was_named(shape: ModelShape) -> None:
    grouped = _with_groups(shape)
    assert held_bits("int4", grouped, {})[Q] == 4 and held_bits("int8", grouped, {})[Q] == 8
    assert held_bits("int4", grouped, {})[EMBEDDING] == 8


def test_columns_that_make_no_groups_are_bfloat16(shape: ModelShape) -> None:
    odd = msgspec.structs.replace(shape, hidden_size=48)
    bits = held_bits("int4", odd, {})
    assert bits[Q] == 16 and packed_bytes(20, 48, 16) == 32 * 48 * 2


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 16), ("float32", 32)])
def test_a_float_dtype_is_that_of_all_matrices_whatever_is_stored(shape: ModelShape, dtype: str, bits: int) -> None:
    odd = msgspec.structs.replace(shape, hidden_size=48)
    held = held_bits(dtype, odd, {Q: "Q4_K", DOWN: "Q8_0"})
    assert {EMBEDDING, Q, DOWN} <= held.keys() and set(held.values()) == {bits}
    assert packed_bytes(20, 48, bits) == 32 * 48 * bits // 8


def _with_groups(shape: ModelShape) -> ModelShape:
    return msgspec.structs.replace(shape, hidden_size=64, intermediate_size=128, num_heads=2, head_dim=32)
