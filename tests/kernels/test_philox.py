"""Philox4x32-10 against Random123's published known-answer vectors and a scalar twin in Python integers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels.philox import NOISE_FLOOR, gumbel, gumbel_rows, gumbel_tokens, philox4x32

U32 = 0xFFFFFFFF
KNOWN_ANSWERS = [  # counter, key, result: Random123, kat_vectors, philox4x32 10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((U32, U32, U32, U32), (U32, U32), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def scalar_philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & U32, (p0 >> 32) ^ c[3] ^ k[1], p0 & U32]
        k = [(k[0] + 0x9E3779B9) & U32, (k[1] + 0xBB67AE85) & U32]
    return tuple(c)


def scalar_noise(seed, token, index, choice):
    word = scalar_philox((token // 4, index, choice, 0), (seed & U32, seed >> 32))[token % 4]
    u = np.float32((word + 0.5) / 2**32)
    return -math.inf if u == 1 else -math.log(-math.log1p(-float(u)))


def as_int64(seed):
    return int(np.uint64(seed).view(np.int64))


def column(*values):
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter, key, expected):
    words = philox4x32(tuple(column(c) for c in counter), tuple(column(k) for k in key))
    assert tuple(int(w) for w in words) == expected


def test_scalar_twin_gives_the_known_answers():
    for counter, key, expected in KNOWN_ANSWERS:
        assert scalar_philox(counter, key) == expected


@pytest.mark.parametrize("vocab_size", [1, 7, 1023, 4096])
@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1, 0xDEADBEEF12345678])
def test_rows_equal_the_scalar_formula(vocab_size, seed):
    noise = gumbel_rows(column(as_int64(seed)), column(1234), column(3), vocab_size)
    assert noise.shape == (1, vocab_size)
    assert noise.dtype == torch.float32
    for token in {0, vocab_size // 2, vocab_size - 1}:
        assert float(noise[0, token]) == pytest.approx(scalar_noise(seed, token, 1234, 3), rel=1e-5, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.integers(0, 200)), min_size=1, max_size=4),
    st.lists(st.integers(0, 999), min_size=1, max_size=20),
)
def test_single_tokens_equal_rows_bit_for_bit(rows, tokens):
    seeds = column(*[as_int64(seed) for seed, _, _ in rows])
    indexes, choices = column(*[r[1] for r in rows]), column(*[r[2] for r in rows])
    grid = gumbel_rows(seeds, indexes, choices, 1000)
    of_row = torch.arange(len(rows)).repeat_interleave(len(tokens))
    ids = column(*tokens).repeat(len(rows))
    flat = gumbel_tokens(seeds[of_row], indexes[of_row], choices[of_row], ids)
    assert torch.equal(flat, grid[of_row, ids])
    alone = gumbel_rows(seeds[:1], indexes[:1], choices[:1], 1000)
    assert torch.equal(alone[0], grid[0])


def test_more_single_tokens_than_are_handled_at_once_equal_a_row():
    ids = torch.arange(40_000).flip(0)
    seeds, indexes, choices = (column(value).expand(40_000) for value in (99, 3, 1))
    row = gumbel_rows(column(99), column(3), column(1), 40_000)[0]
    assert torch.equal(gumbel_tokens(seeds, indexes, choices, ids), row.flip(0))
    assert gumbel_tokens(seeds[:0], indexes[:0], choices[:0], ids[:0]).shape == (0,)


def test_extreme_words_give_finite_noise():
    noise = gumbel((column(0, 1, 2**32 - 1, 2**32 - 128, 2**32 - 129, 2**31),))[:, 0]
    assert torch.isfinite(noise).all()
    assert float(noise[0]) == pytest.approx(33 * math.log(2), rel=1e-6)
    assert float(noise[2]) == float(noise[3]) == pytest.approx(NOISE_FLOOR)  # u rounds to 1
    assert float(noise[4]) == pytest.approx(-math.log(24 * math.log(2)), rel=1e-6)  # u = 1 - 2^-24


def test_noise_is_gumbel_distributed():
    """Kolmogorov-Smirnov against exp(-exp(-x)); the bound, sqrt(-ln(5e-7) / 2n), is passed once in 1e6."""
    noise = gumbel_rows(column(42, 43, 42, 42), column(0, 0, 1, 0), column(0, 0, 0, 1), 50_000).reshape(-1).double()
    cdf = torch.exp(-torch.exp(-noise.sort().values))
    n = cdf.numel()
    steps = torch.arange(n, dtype=torch.float64) / n
    assert float(torch.maximum(cdf - steps, steps + 1 / n - cdf).max()) < math.sqrt(-math.log(5e-7) / (2 * n))


def test_seeds_positions_and_choices_are_independent():
    """Correlation of any two rows of n normal scores is about normal with deviation 1 / sqrt(n)."""
    rows = [(7, 0, 0), (8, 0, 0), (7 + 2**32, 0, 0), (7, 1, 0), (7, 0, 1), (7, 1, 1)]
    noise = gumbel_rows(*(column(*c) for c in zip(*rows, strict=True)), 20_000).double()
    correlation = torch.corrcoef(torch.exp(-torch.exp(-noise))).abs()
    correlation.fill_diagonal_(0)
    assert float(correlation.max()) < 6 / math.sqrt(20_000)
