"""Blocks read as they are stand for the same numbers as blocks that are dequantized; the gguf package is the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from callboard.checkpoints.gguf_types import BLOCKS
from callboard.models.gguf_quantized import has_quantized, read_quantized

EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def random_rows(kind: str, num_rows: int, num_blocks: int, seed: int) -> np.ndarray:
    """Random bits, with scales of a size that occurs."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_rows * num_blocks, BLOCKS[kind][1]), dtype=np.uint8)
    num_scales = 2 if kind in ("Q4_1", "Q5_1", "Q4_K") else 1
    scales = rng.uniform(-0.1, 0.1, (len(blocks), num_scales)).astype(np.float16)
    blocks[:, : 2 * num_scales] = scales.view(np.uint8)
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize("kind", EXACT)
def test_a_type_with_groups_of_32_keeps_every_weight(kind: str) -> None:
    raw = random_rows(kind, 5, 3, seed=1)
    expected = quants.dequantize(raw, GGMLQuantizationType[kind])
    found = read_quantized(raw, kind)
    assert found.q.shape == expected.shape and found.d.shape == (5, 3)
    np.testing.assert_allclose(found.dequantize(), expected, rtol=1e-6, atol=1e-6)


def test_q4_k_keeps_its_four_bits_and_rounds_its_scales_to_float16() -> None:
    raw = random_rows("Q4_K", 4, 2, seed=2)
    expected = quants.dequantize(raw, GGMLQuantizationType.Q4_K)
    found = read_quantized(raw, "Q4_K")
    assert found.q.max() <= 15 and found.d.shape == (4, 16)
    # d s and m z are rounded by at most 2^-11 of themselves each
    bound = (
        np.abs(found.q * np.repeat(found.d, 32, 1).astype(np.float32)) + np.abs(np.repeat(found.m, 32, 1))
    ) * 2**-10
    assert (np.abs(found.dequantize() - expected) <= bound + 1e-7).all()


def test_other_types_are_read_as_numbers() -> None:
    assert not any(map(has_quantized, ("F32", "Q6_K", "Q2_K", "IQ4_NL")))
