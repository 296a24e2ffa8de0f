"""Sums and maxima come in one order, whoever compiled them: 16 lanes, folded in halves, then the numbers left over."""

from __future__ import annotations

import numpy as np
import pytest

from callboard.tests.kernels.cpu_loops import largest, largest_magnitude, total, total_of_squares

SIZES = [*range(35), 63, 64, 65, 576, 1000]


def numbers(size):
    rng = np.random.default_rng(size)
    return (rng.standard_normal(size) * 10.0 ** rng.integers(-4, 5, size)).astype(np.float32)


def in_order(terms):
    """The definition, in numpy's float32."""
    whole = terms.size // 16 * 16
    lanes = np.zeros(16, np.float32)
    for numbers in terms[:whole].reshape(-1, 16):
        lanes = lanes + numbers
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    result = lanes[0]
    for number in terms[whole:]:
        result = result + number
    return result


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_those_of_the_order_bit_by_bit(size):
    x = numbers(size)
    assert total(x) == in_order(x)
    assert total_of_squares(x) == in_order(x * x)


@pytest.mark.parametrize("size", SIZES)
def test_maxima(size):
    x = numbers(size)
    assert largest(x) == x.max(initial=-np.inf)
    assert largest_magnitude(x) == np.abs(x).max(initial=0)
    assert np.isneginf(largest(np.full(size, -np.inf, np.float32)))


@pytest.mark.parametrize("place", [0, 15, 16, 31, 32, 36])
def test_what_is_no_number_is_seen(place):
    x = numbers(37)
    x[place] = -np.inf
    assert largest_magnitude(x) == np.inf
    for sign in (1, -1):
        x[place] = np.copysign(np.float32(np.nan), sign)
        assert np.isnan(largest_magnitude(x)) and np.isnan(total(x)) and np.isnan(total_of_squares(x))
