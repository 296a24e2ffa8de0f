"""The kept set against a brute-force twin that sorts in float64 and filters one step after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from callboard.kernels.filters import kept_thresholds


def kept(logits, top_k=0, top_p=1.0, min_p=0.0):
    logits = torch.as_tensor(logits, dtype=torch.float32)
    logits = logits - logits.amax(1, keepdim=True)
    n = logits.shape[0]
    thresholds = kept_thresholds(
        logits,
        torch.as_tensor(top_k, dtype=torch.int64).expand(n),
        torch.as_tensor(top_p, dtype=torch.float32).expand(n),
        torch.as_tensor(min_p, dtype=torch.float32).expand(n),
    )
    return (logits >= thresholds[:, None]).numpy()


def brute_force(row, top_k, top_p, min_p):
    """(kept ids, whether the top_p border is too near to a sum for float32 to say)."""
    row = np.asarray(row, np.float32).astype(np.float64)
    row -= row.max()
    ids = [i for i in range(row.size) if np.exp(row[i]) >= np.float32(min_p) and row[i] > -np.inf]
    is_near = any(abs(np.exp(row[i]) - np.float32(min_p)) < 1e-5 * min_p for i in range(row.size))
    ids.sort(key=lambda i: -row[i])
    if top_k and top_k < len(ids):
        ids = [i for i in ids if row[i] >= row[ids[top_k - 1]]]
    if top_p < 1.0:
        weights = np.exp(row[ids])
        sums = np.cumsum(weights / weights.sum())
        is_near |= bool((np.abs(sums - np.float32(top_p)) < 1e-4).any())
        last = min(int((sums < np.float32(top_p)).sum()), len(ids) - 1)
        ids = [i for i in ids if row[i] >= row[ids[last]]]
    return set(ids), is_near


@pytest.mark.parametrize("vocab_size", [1, 7, 1023, 4096])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.01, 1.0, 5.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 300, 10_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)
def test_equal_to_brute_force(vocab_size, seed, spread, top_k, top_p, min_p):
    row = np.random.default_rng(seed).normal(0, spread, (1, vocab_size)).astype(np.float32)
    expected, is_near = brute_force(row[0], top_k, top_p, min_p)
    assume(not is_near)
    assert set(np.flatnonzero(kept(row, top_k, top_p, min_p)[0])) == expected


def test_rows_of_a_batch_keep_what_they_keep_alone():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 2, (12, 3000)).astype(np.float32)
    top_k, top_p = rng.choice([0, 1, 40, 700], 12), rng.choice([1.0, 0.95, 0.3], 12)
    min_p = rng.choice([0.0, 0.05], 12)
    together = kept(logits, top_k, top_p, min_p)
    for i in range(12):
        assert (together[i] == kept(logits[i : i + 1], top_k[i], top_p[i], min_p[i])[0]).all()


def test_token_that_crosses_the_border_stays():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    assert kept(logits, top_p=0.6).tolist() == [[True, True, False, False]]
    assert kept(logits, top_p=0.4).tolist() == [[True, False, False, False]]
    assert kept(logits, top_p=0.81).tolist() == [[True, True, True, False]]
    assert kept(logits, top_p=0.0).tolist() == [[True, False, False, False]]


def test_top_p_is_over_what_top_k_left():
    # 0.5 / 0.8 = 0.625 of what two tokens have.
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    assert kept(logits, top_k=2, top_p=0.62).tolist() == [[True, False, False, False]]
    assert kept(logits, top_k=2, top_p=0.63).tolist() == [[True, True, False, False]]
    assert kept(logits, min_p=0.5, top_p=0.63).tolist() == [[True, True, False, False]]


def test_ties_with_the_last_kept_stay():
    assert kept([[1.0, 3.0, 1.0, 2.0, 1.0]], top_k=3).tolist() == [[True] * 5]
    assert kept([[0.0] * 1000], top_p=0.3).all()


def test_minus_infinity_is_never_kept_by_top_k():
    logits = [[-np.inf, 1.0, -np.inf, 0.0]]
    assert kept(logits, min_p=0.01).tolist() == [[False, True, False, True]]
    assert kept(logits, top_p=0.99).tolist() == [[False, True, False, True]]


def test_wide_nucleus_is_sorted_in_full():
    logits = np.zeros((2, 20_000), np.float32)
    logits[0] = np.linspace(0, -1e-3, 20_000)  # nearly flat: the nucleus of 0.5 has about half of the tokens
    result = kept(logits, top_p=0.5)
    assert abs(result[0].sum() - 10_000) < 20
    assert result[0, : result[0].sum()].all()
