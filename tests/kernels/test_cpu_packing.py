"""Packed matrices hold what was put into them, in whatever pieces and order it came."""

from __future__ import annotations

from itertools import pairwise

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels.cpu.embedding import read_row
from callboard.kernels.cpu.packing import FORMATS, MatrixPacker, quantize
from callboard.kernels.cpu.quantized_rows import QuantizedRows
from callboard.kernels.cpu.step_arguments import fields_of
from callboard.tests.kernels.cpu_matrices import (
    BITS,
    group_parameters,
    pack,
    random_matrix,
    stored_numbers,
    stored_weights,
)

FEW = settings(max_examples=40, deadline=None)


@st.composite
def cut_matrices(draw):
    """(bits, weights, pieces in any order as (first row, last row))."""
    bits = draw(st.sampled_from(BITS))
    out_features = draw(st.integers(1, 70))
    in_features = draw(st.integers(1, 3)) * 32 if bits <= 8 else draw(st.integers(1, 40))
    cuts = sorted(draw(st.sets(st.integers(1, out_features), max_size=6)) | {0, out_features})
    pieces = draw(st.permutations(list(pairwise(cuts))))
    return bits, random_matrix(draw(st.integers(0, 99)), out_features, in_features), pieces


@FEW
@given(cut_matrices())
def test_pieces_in_any_order_make_the_same_matrix(case):
    bits, weights, pieces = case
    packer, whole = MatrixPacker(bits, *weights.shape), pack(bits, weights)
    for first, last in pieces:
        piece = weights[first:last].copy()
        packer.put(first, piece)
        piece.fill(np.nan)  # it may be the caller's buffer
    matrix = packer.take()
    for name in ("values", "d", "m"):
        assert np.array_equal(getattr(matrix, name), getattr(whole, name)), name


@st.composite
def quantized_rows(draw):
    bits = draw(st.sampled_from((4, 8)))
    num_rows, groups = draw(st.integers(1, 40)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    q = rng.integers(0, 1 << draw(st.integers(1, bits)), (num_rows, 32 * groups)).astype(np.uint8)
    d, m = (rng.standard_normal((num_rows, groups)).astype(np.float16) for _ in range(2))
    cuts = sorted(draw(st.sets(st.integers(1, num_rows), max_size=4)) | {0, num_rows})
    return bits, QuantizedRows(q, d, m), draw(st.permutations(list(pairwise(cuts))))


@FEW
@given(quantized_rows())
def test_what_is_quantized_stays_as_it_is(case):
    bits, rows, pieces = case
    packer = MatrixPacker(bits, *rows.q.shape)
    for first, last in pieces:
        packer.put(first, QuantizedRows(rows.q[first:last], rows.d[first:last], rows.m[first:last]))
    matrix = packer.take()
    assert np.array_equal(stored_numbers(matrix), rows.q)
    for stored, given_ in zip(group_parameters(matrix), (rows.d, rows.m), strict=True):
        assert np.array_equal(stored, given_)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_of_gguf_are_kept(kind):
    """The gguf package's own numbers, from its own bytes."""
    quantization = gguf.GGMLQuantizationType[kind]
    raw = gguf.quants.quantize(random_matrix(1, 21, 96), quantization)
    blocks = raw.reshape(21, 3, -1)
    d, rest = blocks[..., :2].copy().view(np.float16)[..., 0], blocks[..., 2:]
    if kind == "Q8_0":
        q, m = (rest.view(np.int8).astype(np.int16) + 128).astype(np.uint8), -128 * d
    else:
        m = rest[..., :2].copy().view(np.float16)[..., 0] if kind == "Q4_1" else -8 * d
        nibbles = rest[..., 2 * (kind == "Q4_1") :]
        q = np.concatenate((nibbles & 15, nibbles >> 4), -1)
    packer = MatrixPacker(8 if kind == "Q8_0" else 4, 21, 96)
    packer.put(0, QuantizedRows(q.reshape(21, 96), d, m))
    expected = gguf.quants.dequantize(raw, quantization)
    np.testing.assert_allclose(stored_weights(packer.take()), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@FEW
@given(st.sampled_from((4, 8)), st.integers(0, 999), st.floats(1e-8, 8e3), st.floats(-4, 4))
def test_weights_move_by_half_a_step_and_the_rounding_of_float16(bits, seed, spread, shift):
    """Half a step between the ends; at the ends what rounding moves those by: 2⁻¹¹ of a number, or 2⁻²⁵."""
    rng = np.random.default_rng(seed)
    weights = ((rng.uniform(-1, 1, (3, 64)) + shift) * spread).astype(np.float32)
    groups = weights.astype(np.float64).reshape(3, 2, 32)
    lowest, highest, steps = groups.min(-1), groups.max(-1), 15
    d = (highest - lowest) / 15
    if bits == 8:
        d, lowest, steps = np.abs(groups).max(-1) / 127, np.zeros_like(lowest), 127
    at_the_ends = steps * (d * 2.0**-11 + 2.0**-25) + np.abs(lowest) * 2.0**-11 + 2.0**-25
    bound = (d / 2 * (1 + 2.0**-10) + at_the_ends).repeat(32).reshape(3, 64) + np.abs(weights) * 2.0**-22
    moved = np.abs(quantize(weights, bits).dequantize().astype(np.float64) - weights)
    assert (moved <= bound).all()
    assert np.array_equal(stored_weights(pack(bits, weights)).astype(np.float32), quantize(weights, bits).dequantize())


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_too_large_for_float16_are_clipped_and_not_infinite(bits):
    weights = np.full((1, 32), 1e38, np.float32)
    weights[0, ::2] = -1e38
    stored = stored_weights(pack(bits, weights))
    assert np.isfinite(stored).all()
    assert (stored[0, 1::2] > 6e4).all() and (stored[0, ::2] < -6e4).all()


def test_float_formats_hold_the_nearest_number():
    weights = np.random.default_rng(0).integers(0, 1 << 32, (37, 41), np.uint32).view(np.float32)
    weights = np.where(np.abs(weights) < 3e38, weights, np.float32(1.0))  # neither infinite nor NaN
    assert np.array_equal(stored_numbers(pack(32, weights)), weights)
    assert np.array_equal(stored_numbers(pack(16, weights)), torch.from_numpy(weights).bfloat16().float().numpy())


@pytest.mark.parametrize("bits", BITS)
def test_rows_come_back(bits):
    matrix = pack(bits, random_matrix(bits, 75, 64))
    indexes = np.array([74, 0, 15, 16, 0, 33, 70])
    expected = stored_weights(matrix)[indexes]
    fields, out = fields_of(matrix), np.empty(64, np.float32)
    for row, line in zip(indexes, expected, strict=True):
        read_row(fields, row, np.float32(2.5), out)
        np.testing.assert_allclose(out, 2.5 * line, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [1, 31, 33, 48])
def test_columns_that_make_no_groups_are_refused(bits, columns):
    with pytest.raises(ValueError, match=rf"{FORMATS[bits]} takes groups of 32 columns, not {columns} columns"):
        MatrixPacker(bits, 16, columns)


def test_values_lie_where_vectors_like_it():
    assert all(pack(bits, random_matrix(0, 16, 32)).values.ctypes.data % 64 == 0 for bits in BITS)
