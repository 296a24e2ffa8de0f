"""Sampling against its law: softmax of the processed logits, and independence from everything but the row itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from callboard.kernels.sampling import SamplingBatch, process_temperature, sample


def make_batch(n, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=None, indexes=0, choices=0):
    def full(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(n).clone()

    return SamplingBatch(
        temperature=full(temperature, torch.float32),
        top_k=full(top_k, torch.int64),
        top_p=full(top_p, torch.float32),
        min_p=full(min_p, torch.float32),
        seeds=torch.arange(n) if seeds is None else full(seeds, torch.int64),
        indexes=full(indexes, torch.int64),
        choices=full(choices, torch.int64),
    )


def g_statistic(counts, probabilities):
    """2 sum O ln(O / E); chi-square distributed with cells - 1 degrees of freedom."""
    expected = probabilities * counts.sum()
    seen = counts > 0
    return 2 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum())


def chi_square_bound(freedom, z=5.0):
    """Wilson and Hilferty 1931: the quantile of chi-square that matches z normal deviations (z = 5: about 3e-7)."""
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


LOGITS = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.7, -3.0, -torch.inf, 1.0])


@pytest.mark.parametrize("varied", ["seeds", "indexes", "choices"])
@pytest.mark.parametrize(
    ("settings", "kept_ids"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 7]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4, 5, 7]),
        ({"temperature": 2.5}, [0, 1, 2, 3, 4, 5, 7]),
        ({"top_k": 3}, [0, 4, 7]),
        ({"top_p": 0.6}, [0, 4]),
        ({"min_p": 0.2}, [0, 2, 4, 7]),
        ({"temperature": 2.0, "top_k": 5, "top_p": 0.8, "min_p": 0.1}, [0, 2, 4, 7]),
    ],
)
def test_distribution(settings, kept_ids, varied):
    n = 20_000
    batch = make_batch(n, **({"seeds": 11} | settings | {varied: torch.arange(n)}))
    tokens = sample(LOGITS.expand(n, -1), batch).numpy()
    counts = np.bincount(tokens, minlength=8).astype(float)
    assert set(np.flatnonzero(counts)) <= set(kept_ids)
    weights = np.exp(LOGITS.numpy()[kept_ids].astype(np.float64) / settings.get("temperature", 1.0))
    statistic = g_statistic(counts[kept_ids], weights / weights.sum())
    assert statistic < chi_square_bound(len(kept_ids) - 1)


def test_pairs_of_positions_are_independent():
    """The joint counts of two successive tokens of one seed fit the product of the law."""
    n, logits = 20_000, torch.tensor([0.3, 0.0, -0.4])
    first = sample(logits.expand(n, -1), make_batch(n, indexes=0))
    second = sample(logits.expand(n, -1), make_batch(n, indexes=1))
    counts = np.bincount((first * 3 + second).numpy(), minlength=9).astype(float)
    law = torch.softmax(logits.double(), 0).numpy()
    assert g_statistic(counts, np.outer(law, law).ravel()) < chi_square_bound(8)


@pytest.mark.parametrize("vocab_size", [1, 7, 1023, 4096])
def test_same_token_in_any_batch(vocab_size):
    rng = np.random.default_rng(vocab_size)
    n = 24
    logits = torch.from_numpy(rng.normal(0, 3, (n, vocab_size)).astype(np.float32))
    batch = make_batch(
        n,
        temperature=rng.choice([0.0, 0.3, 1.0, 1.8], n),
        top_k=rng.choice([0, 1, 3, 500], n),
        top_p=rng.choice([1.0, 0.9, 0.2], n),
        min_p=rng.choice([0.0, 0.1], n),
        seeds=rng.integers(-(2**63), 2**63 - 1, n),
        indexes=rng.integers(0, 1000, n),
        choices=rng.integers(0, 4, n),
    )
    together = sample(logits, batch)
    order = torch.from_numpy(rng.permutation(n))
    assert torch.equal(sample(logits[order], batch.take(order)), together[order])
    for i in range(n):
        alone = torch.tensor([i])
        assert int(sample(logits[alone], batch.take(alone))[0]) == int(together[i])


@pytest.mark.parametrize("piece", [1, 2 * 1023, 5 * 1023])
def test_pieces_do_not_change_the_tokens(piece, monkeypatch):
    """Rows whose filters keep every token, few tokens or are not there, so that what is kept fills pieces unevenly."""
    rng = np.random.default_rng(8)
    n = 40
    logits = torch.from_numpy(rng.normal(0, 2, (n, 1023)).astype(np.float32))
    batch = make_batch(
        n,
        temperature=rng.choice([0.0, 0.7, 1.0], n, p=[0.2, 0.4, 0.4]),
        top_k=rng.choice([0, 5, 1000], n),
        min_p=rng.choice([0.0, 1e-30, 0.1], n),
    )
    whole = sample(logits, batch)
    monkeypatch.setattr("callboard.kernels.sampling.PIECE_LOGITS", piece)
    assert torch.equal(sample(logits, batch), whole)


def test_filters_do_not_move_the_noise():
    """A filter that keeps everything gives the same sample as no filter, though the noise is made another way."""
    n = 200
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 2, (n, 1023)).astype(np.float32))
    free = sample(logits, make_batch(n))
    assert torch.equal(sample(logits, make_batch(n, top_k=1023)), free)
    assert torch.equal(sample(logits, make_batch(n, min_p=1e-20)), free)


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    assert sample(logits, None).tolist() == [1, 0]
    assert sample(logits, make_batch(2, temperature=[0.0, 0.0])).tolist() == [1, 0]
    wide = torch.zeros(1, 49_152)
    wide[0, [40_000, 20_000, 30_000]] = 1.0
    assert sample(wide, None).tolist() == [20_000]


@pytest.mark.parametrize("temperature", [1e-12, 1e-30, 1.1754944e-38])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 4}, {"min_p": 0.1}])
def test_tiny_temperature_is_arg_max(temperature, filters):
    n = 64
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, 8, (n, 1023)).astype(np.float32))
    processed = process_temperature(logits, torch.full((n,), temperature))
    assert not processed.isnan().any()
    assert torch.equal(sample(logits, make_batch(n, temperature=temperature, **filters)), logits.argmax(1))


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}])
def test_impossible_tokens(filters):
    logits = torch.full((2, 9), -torch.inf)
    logits[0, 4] = -3.0
    tokens = sample(logits, make_batch(2, **filters))
    assert int(tokens[0]) == 4
    assert 0 <= int(tokens[1]) < 9  # nothing is possible: any id of the vocabulary, no error


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}])
def test_nan_in_one_row_leaves_the_others_alone(filters):
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 2, (3, 50)).astype(np.float32))
    batch = make_batch(3, **filters)
    expected = sample(logits, batch)
    logits[1, 7] = torch.nan
    tokens = sample(logits, batch)
    assert tokens[0] == expected[0]
    assert tokens[2] == expected[2]
    assert 0 <= int(tokens[1]) < 50


def test_logits_are_left_as_they_were():
    logits = torch.randn(4, 33, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    sample(logits, make_batch(4, temperature=[0.0, 1.0, 0.5, 2.0], top_p=[1.0, 0.5, 1.0, 0.9]))
    assert torch.equal(logits, before)
