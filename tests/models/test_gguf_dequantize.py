"""Every quantized type against the gguf package: equal to the last bit, for any bytes with finite scales."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.checkpoints.gguf_types import BLOCKS, TENSOR_TYPES
from callboard.models.gguf_dequantize import DEQUANTIZERS, dequantize

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Type -> where in a block its float16 numbers are (ggml-common.h)."""


def random_rows(kind: str, num_rows: int, num_blocks: int, seed: int) -> np.ndarray:
    """Rows of any bytes, their float16 numbers finite: uint8 [num_rows, num_blocks * block bytes]."""
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (num_rows * num_blocks, BLOCKS[kind][1]), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = draw.normal(0, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1)


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


def test_types_and_blocks_are_those_of_the_gguf_package() -> None:
    for number, (name, block_elements, block_bytes) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (block_elements, block_bytes)
    assert set(DEQUANTIZERS) == set(BLOCKS) - {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", HALVES)
@settings(deadline=None, max_examples=20)
@given(num_rows=st.integers(1, 5), num_blocks=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_any_bytes_become_what_the_gguf_package_makes_of_them(
    kind: str, num_rows: int, num_blocks: int, seed: int
) -> None:
    raw = random_rows(kind, num_rows, num_blocks, seed)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(bits(dequantize(raw, kind)), bits(expected))


@pytest.mark.parametrize("kind", HALVES)
def test_blocks_beyond_one_chunk_are_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_rows(kind, 7, 3, 1)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    monkeypatch.setattr("callboard.models.gguf_dequantize._CHUNK_ELEMENTS", 2 * BLOCKS[kind][0])
    assert np.array_equal(bits(dequantize(raw, kind)), bits(expected))


def test_q8_k_is_a_float_times_small_integers() -> None:
    """The gguf package lacks this type; block: float32 d, 256 int8 q, 16 int16 sums that no weight needs."""
    draw = np.random.default_rng(0)
    scales, values = draw.normal(0, 1, 6).astype(np.float32), draw.integers(-128, 128, (6, 256), dtype=np.int8)
    raw = np.hstack((scales.view(np.uint8).reshape(6, 4), values.view(np.uint8), np.zeros((6, 32), np.uint8)))
    expected = np.array([[float(d) * int(q) for q in row] for d, row in zip(scales, values, strict=True)], np.float32)
    assert np.array_equal(dequantize(raw.reshape(2, -1), "Q8_K"), expected.reshape(2, -1))


@pytest.mark.parametrize("kind", HALVES)
def test_scales_that_are_not_finite_give_no_warning(kind: str) -> None:
    raw = np.full((2, BLOCKS[kind][1]), 0xFF, np.uint8)
    with np.errstate(all="raise"):
        assert dequantize(raw, kind).shape == (2, BLOCKS[kind][0])


@pytest.mark.parametrize("seed", range(3))
def test_the_least_and_the_largest_of_what_q4_k_can_say(seed: int) -> None:
    """By hand: all nibbles equal, d = 1, m = 0.5, scales and minima of the first group 63 and 1, all others 0."""
    nibble = (0, 7, 15)[seed]
    block = np.zeros(144, np.uint8)
    block[0:2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    block[2:4] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    block[4], block[8] = 63, 1
    block[16:] = nibble | nibble << 4
    values = dequantize(block.reshape(1, -1), "Q4_K")[0]
    assert values[:32].tolist() == [63 * nibble - 0.5] * 32
    assert not values[32:].any()
