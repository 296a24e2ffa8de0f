"""Norms, activations and the arithmetic under them against float64; rounding against its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from callboard.kernels.cpu.rows import gate, rms_norm, round_row
from callboard.tests.kernels.cpu_loops import apply_exp, apply_gelu, apply_silu, narrow_all


def results(function, x):
    out = np.empty_like(x)
    function(x, out)
    return out


def test_exp_is_within_five_units_in_the_last_place():
    x = np.concatenate((np.linspace(-87, 88, 1 << 18), np.linspace(-1, 1, 1 << 16))).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    units = np.abs(results(apply_exp, x) - exact) / np.spacing(exact.astype(np.float32))
    assert units.max() <= 5
    assert results(apply_exp, np.zeros(1, np.float32))[0] == 1


def test_exp_stays_at_its_ends():
    x = np.array([-np.inf, -1e30, -88.0, -87.0, 88.0, 88.5, 1e30, np.inf], np.float32)
    ends = np.exp(np.array([-87.0] * 4 + [88.0] * 4))
    np.testing.assert_allclose(results(apply_exp, x), ends, rtol=3e-7)


@pytest.mark.parametrize(
    ("function", "oracle", "tolerance"),
    [(apply_silu, F.silu, 5e-7), (apply_gelu, lambda x: F.gelu(x, approximate="tanh"), 2e-5)],
    ids=["silu", "gelu"],
)
def test_activations(function, oracle, tolerance):
    x = np.concatenate((np.linspace(-87, 100, 20_001), np.linspace(-1e-3, 1e-3, 1001))).astype(np.float32)
    exact = oracle(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(results(function, x), exact, rtol=tolerance, atol=1e-14)
    x = np.array([-1e30, -1e4, -100, 1e4, 1e30], np.float32)
    np.testing.assert_allclose(results(function, x), np.where(x > 0, x, 0), rtol=1e-6, atol=1e-7)
    assert np.isnan(results(function, np.full(8, np.nan, np.float32))).all()


@pytest.mark.parametrize("is_gelu", [False, True])
def test_gate(is_gelu):
    size = 75
    gate_up = (4 * np.random.default_rng(0).standard_normal(2 * size)).astype(np.float32)
    out = np.full(size + 1, np.nan, np.float32)
    gate(gate_up, size, is_gelu, out)
    first, second = torch.from_numpy(gate_up).double().chunk(2)
    exact = (F.gelu(first, approximate="tanh") if is_gelu else F.silu(first)) * second
    np.testing.assert_allclose(out[:size], exact.numpy(), rtol=1e-5, atol=1e-6)
    assert np.isnan(out[size])


@pytest.mark.parametrize("size", [1, 7, 64, 577, 4096])
@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 1e4])
def test_rms_norm(size, magnitude):
    rng = np.random.default_rng(size)
    x, weight = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    x *= np.float32(magnitude)
    eps = np.float32(1e-6)
    exact = F.rms_norm(torch.from_numpy(x).double(), (size,), torch.from_numpy(weight).double(), float(eps)).numpy()
    out = np.empty_like(x)
    rms_norm(x, weight, eps, out)
    np.testing.assert_allclose(out, exact, rtol=2e-6)
    rms_norm(x, weight, eps, x)  # in place
    assert np.array_equal(x, out)


def rounded(x, fine_from=0.0):
    values, scales = np.full(2 * x.size, 99, np.int8), np.full((x.size // 32, 3), np.nan, np.float32)
    round_row(x, np.float32(fine_from), values, scales)
    parts = values.astype(np.int64).reshape(-1, 2, 32)
    assert parts[:, 0].min() >= -127 and parts[:, 1].min() >= -64 and parts[:, 1].max() <= 63
    return (128 * parts[:, 0] + parts[:, 1]).reshape(-1), scales


@pytest.mark.parametrize("magnitude", [1e-42, 1e-39, 1e-37, 1e-31, 1e-28, 1.0, 1e30, 1e35])
def test_rounding_moves_a_number_by_half_a_step(magnitude):
    """A step is 1/16319 of the group's largest number. Nobody misses what is smaller than 1e-30."""
    x = (np.random.default_rng(0).uniform(-1, 1, 96) * magnitude).astype(np.float32)
    x[40] = 0
    values, scales = rounded(x)
    largest = np.abs(x).astype(np.float64).reshape(3, 32).max(-1)
    moved = np.abs(values.reshape(3, 32) * scales[:, :1].astype(np.float64) - x.reshape(3, 32))
    assert np.abs(values).max() <= 16319
    assert (moved <= largest[:, None] / 2 / 16319 * (1 + 1e-2) + 1e-30).all()
    sums = scales[:, 0].astype(np.float64) * values.reshape(3, 32).sum(-1)
    np.testing.assert_allclose(scales[:, 1], sums, rtol=2.0**-23, atol=1e-44)
    if magnitude >= 1e-28:
        assert (np.abs(values.reshape(3, 32)).max(-1) == 16319).all()


def test_rounding_of_zeros():
    values, scales = rounded(np.zeros(64, np.float32))
    assert (values == 0).all() and (scales[:, :2] == 0).all()


def test_groups_are_rounded_apart():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(96).astype(np.float32) * np.repeat(np.float32([1e-6, 1, 1e6]), 32)
    values, scales = rounded(x)
    for g in range(3):
        alone, scale = rounded(x[32 * g : 32 * g + 32].copy())
        assert np.array_equal(values[32 * g : 32 * g + 32], alone)
        assert np.array_equal(scales[g], scale[0])


def test_bfloat16_is_the_nearest_with_ties_to_even():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 4096, np.uint32)
    bits[::4] = bits[::4] & 0xFFFF0000 | 0x8000  # ties
    x = bits.view(np.float32)
    x = np.where(np.abs(x) < 3e38, x, np.float32(1.5)).astype(np.float32)
    out = np.zeros(x.size, np.uint16)
    narrow_all(x, out)
    assert np.array_equal(out.view(np.int16), torch.from_numpy(x).bfloat16().view(torch.int16).numpy())
    same = np.zeros_like(x)
    narrow_all(x, same)
    assert np.array_equal(same, x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_group_with_what_is_no_number_has_no_finite_scale(value):
    x = np.random.default_rng(0).standard_normal(96).astype(np.float32)
    x[40] = value
    for fine_from in (np.float32(0), np.float32(5)):
        scales = np.zeros((3, 3), np.float32)
        round_row(x, fine_from, np.zeros(2 * x.size, np.int8), scales)
        assert np.isfinite(scales[[0, 2]]).all() and not np.isfinite(scales[1, :2]).any()


@pytest.mark.parametrize("magnitude", [1e-20, 1.0, 1e15])
@pytest.mark.parametrize("fine_from", [0.0, 1.5, 2.2, 4.0, np.inf])
def test_groups_that_stick_out_are_rounded_finely_and_the_rest_to_eight_bits(magnitude, fine_from):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(32 * 200) * magnitude).astype(np.float32)
    x[::320] *= 8
    values, scales = rounded(x, fine_from)
    groups = x.reshape(-1, 32).astype(np.float64)
    largest = np.abs(groups).max(-1)
    ratio = largest / np.sqrt((groups**2).mean())
    is_fine = scales[:, 2] == 1
    assert np.array_equal(is_fine, ratio >= fine_from) and set(scales[:, 2]) <= {0, 1}
    assert 0 < is_fine.sum() < 200 or fine_from in (0, np.inf)
    steps = np.where(is_fine, 16319, 127 * 128)
    np.testing.assert_allclose(scales[:, 0], largest / steps, rtol=2.0**-23)
    integers = values.reshape(-1, 32)
    assert (integers[~is_fine] % 128 == 0).all()
    halves = np.where(is_fine, 0.5, 64.0) * scales[:, 0].astype(np.float64) * (1 + 1e-2)
    assert (np.abs(integers * scales[:, :1].astype(np.float64) - groups) <= halves[:, None]).all()
    np.testing.assert_allclose(scales[:, 1], scales[:, 0] * integers.sum(-1), rtol=2.0**-22, atol=1e-30)
