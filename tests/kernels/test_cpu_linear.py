"""Products of every format against float64 sums of exactly the stored numbers; a row does not know its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from callboard.kernels.cpu.linear import multiply
from callboard.kernels.cpu.packing import MatrixPacker
from callboard.kernels.cpu.quantized_rows import QuantizedRows
from callboard.kernels.cpu.step_arguments import fields_of
from callboard.kernels.cpu.team import Team
from callboard.tests.kernels.cpu_matrices import (
    BITS,
    exact_product,
    fill_rows,
    multiply_alone,
    one_row,
    pack,
    random_matrix,
)

MOST_ROWS = 13
TYPICAL = 2.1
"""Times a row's root mean square: about half of the groups of normal numbers have one as large."""
SIZES = [(1, 32), (16, 64), (17, 32), (33, 96), (50, 1120)]
ODD_SIZES = [(1, 1), (5, 37), (47, 129), (16, 3)]
CASES = [(bits, *size) for bits in BITS for size in SIZES + (ODD_SIZES if bits > 8 else [])]


def make_case(bits, out_features, in_features, num_rows=MOST_ROWS):
    matrix = pack(bits, random_matrix(out_features, out_features, in_features))
    x = random_matrix(in_features + 1, num_rows, in_features)
    return matrix, fill_rows(x, spare_columns=32, fine_from=TYPICAL)


def empty(matrix, num_rows):
    return np.full((num_rows, 16 * matrix.num_panels), np.nan, np.float32)


@pytest.mark.parametrize(("bits", "out_features", "in_features"), CASES)
def test_products_are_those_of_the_stored_numbers(bits, out_features, in_features):
    matrix, rows = make_case(bits, out_features, in_features)
    expected, tolerance = exact_product(matrix, rows, MOST_ROWS)
    y = multiply_alone(matrix, rows, MOST_ROWS, empty(matrix, MOST_ROWS))
    assert (np.abs(y - expected) <= tolerance).all()


@pytest.mark.parametrize(("bits", "out_features", "in_features"), CASES)
def test_a_row_is_the_same_whatever_stands_beside_it(bits, out_features, in_features):
    matrix, rows = make_case(bits, out_features, in_features)
    y = multiply_alone(matrix, rows, MOST_ROWS, empty(matrix, MOST_ROWS))
    for num_rows in range(1, MOST_ROWS):
        fewer = empty(matrix, MOST_ROWS)
        assert np.array_equal(multiply_alone(matrix, rows, num_rows, fewer), y[:num_rows])
        assert np.isnan(fewer[num_rows:]).all()  # nothing is written behind them
    for row in range(MOST_ROWS):
        alone = one_row(rows, row)
        assert np.array_equal(multiply_alone(matrix, alone, 1, empty(matrix, 1)), y[row : row + 1])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("fine", range(MOST_ROWS))
def test_one_fine_row_is_fine_among_coarse_ones(bits, fine):
    """Its low parts count for it, and change nothing for those beside it."""
    matrix, rows = make_case(bits, 33, 96)
    x = rows.x[:, :96]
    finely, coarsely = (fill_rows(x, fine_from=each) for each in (0.0, np.inf))
    mixed = fill_rows(x, fine_from=np.inf)
    for part, of in ((mixed.values, finely.values), (mixed.scales, finely.scales)):
        part[fine] = of[fine]
    y, expected = (multiply_alone(matrix, each, MOST_ROWS, empty(matrix, MOST_ROWS)) for each in (mixed, coarsely))
    expected[fine] = multiply_alone(matrix, finely, MOST_ROWS, empty(matrix, MOST_ROWS))[fine]
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("bits", BITS)
def test_many_rows_are_cut_into_blocks_without_a_trace(bits):
    matrix, rows = make_case(bits, 40, 64, num_rows=261)
    y = multiply_alone(matrix, rows, 261, empty(matrix, 261))
    expected, tolerance = exact_product(matrix, rows, 261)
    assert (np.abs(y - expected) <= tolerance).all()
    for row in (0, 127, 128, 129, 255, 256, 260):
        alone = one_row(rows, row)
        assert np.array_equal(multiply_alone(matrix, alone, 1, empty(matrix, 1)), y[row : row + 1])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("adds", [0, 1])
@pytest.mark.parametrize("has_bias", [False, True])
def test_bias_and_sum(bits, adds, has_bias):
    matrix, rows = make_case(bits, 37, 64)
    rng = np.random.default_rng(0)
    bias = rng.standard_normal(37).astype(np.float32) if has_bias else np.zeros(37, np.float32)
    with_bias = matrix.with_bias(bias) if has_bias else matrix
    before = rng.standard_normal((MOST_ROWS, 48)).astype(np.float32)
    y = multiply_alone(with_bias, rows, MOST_ROWS, before.copy(), adds)
    expected, tolerance = exact_product(matrix, rows, MOST_ROWS)
    start = before[:, :37].astype(np.float64) * adds
    tolerance = tolerance + 2.0**-22 * (np.abs(expected) + np.abs(start) + np.abs(bias))
    assert (np.abs(y - (expected + start + bias)) <= tolerance).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_no_bit(bits, num_threads):
    matrix, rows = make_case(bits, 700, 128)
    matrix = matrix.with_bias(np.linspace(-1, 1, 700, dtype=np.float32))
    y = multiply_alone(matrix, rows, MOST_ROWS, empty(matrix, MOST_ROWS))
    team, fields, shared = Team(num_threads), fields_of(matrix), empty(matrix, MOST_ROWS)
    try:
        for _ in range(3):
            team.run(lambda index: multiply(team.state, index, fields, rows, MOST_ROWS, shared, 0))
            assert np.array_equal(shared[:, :700], y)
            shared.fill(np.nan)
    finally:
        team.close()


@pytest.mark.parametrize(("bits", "largest"), [(4, 15), (8, 255)])
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_numbers_do_not_overflow(bits, largest, sign):
    """All q and all parts of |x| at their limit: 8 times 2 largest 127 is the most that 16-bit lanes must hold."""
    groups = 3
    packer = MatrixPacker(bits, 20, 32 * groups)
    ones = np.ones((20, groups), np.float16)
    packer.put(0, QuantizedRows(np.full((20, 32 * groups), largest, np.uint8), ones, 0 * ones))
    matrix = packer.take()
    x = np.full((MOST_ROWS, 32 * groups), sign * 16319.0, np.float32)
    y = multiply_alone(matrix, fill_rows(x), MOST_ROWS, empty(matrix, MOST_ROWS))
    assert (y == sign * groups * 32 * largest * 16319.0).all()


@pytest.mark.parametrize("bits", BITS)
def test_matrices_of_one_number_and_rows_of_zeros(bits):
    """A group of equal weights has no spread; a group of zeros has no scale."""
    weights = np.full((18, 64), 0.375, np.float32)
    weights[3] = 0
    weights[5, :32] = 0
    matrix = pack(bits, weights)
    x = np.zeros((3, 64), np.float32)
    x[1, 32:], x[2] = 1.0, -2.0
    y = multiply_alone(matrix, fill_rows(x), 3, empty(matrix, 3))
    assert (y[0] == 0).all()
    assert np.abs(y - x.astype(np.float64) @ weights.T).max() <= 64 * 2 * 0.375 * 2.0**-11


@pytest.mark.parametrize("bits", BITS)
def test_outputs_that_fill_the_last_panel_are_zero(bits):
    matrix, rows = make_case(bits, 17, 64)
    y = empty(matrix, MOST_ROWS)
    multiply_alone(matrix, rows, MOST_ROWS, y)
    assert (y[:, 17:] == 0).all()
