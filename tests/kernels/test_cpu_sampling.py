"""Tokens and log-probabilities from arrays of the host, against those of torch, whose laws have tests of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels.cpu.sampling import choose, kept_threshold, logprobs_of, most_likely, process_temperature
from callboard.kernels.logprobs import gather_logprobs
from callboard.kernels.sampling import SamplingBatch, processed_logits, sample


def parameters(temperature: float, top_k: int, top_p: float, min_p: float, seed: int, index: int, choice: int):
    return SamplingBatch(
        temperature=torch.tensor([temperature], dtype=torch.float32),
        top_k=torch.tensor([top_k]),
        top_p=torch.tensor([top_p], dtype=torch.float32),
        min_p=torch.tensor([min_p], dtype=torch.float32),
        seeds=torch.from_numpy(np.array([seed], np.uint64).view(np.int64)),
        indexes=torch.tensor([index]),
        choices=torch.tensor([choice]),
    )


@settings(max_examples=60, deadline=None)
@given(
    rng=st.integers(0, 1 << 32).map(np.random.default_rng),
    size=st.sampled_from([1, 2, 5, 255, 1023, 5001]),
    spread=st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    cut=st.booleans(),
    temperature=st.sampled_from([1e-30, 0.3, 1.0, 7.0]),
    top_k=st.sampled_from([0, 1, 3, 300, 100_000]),
    top_p=st.sampled_from([1.0, 0.999, 0.7, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    seed=st.integers(0, (1 << 64) - 1),
    index=st.integers(0, 1 << 20),
    choice=st.integers(0, 100),
)
def test_tokens_are_those_of_torch(rng, size, spread, cut, temperature, top_k, top_p, min_p, seed, index, choice):
    logits = rng.normal(0, spread, size).astype(np.float32)
    if cut:
        logits[rng.random(size) < 0.3] = -np.inf
    batch = parameters(temperature, top_k, top_p, min_p, seed, index, choice)
    with np.errstate(all="ignore"):
        processed = process_temperature(logits, temperature)
        threshold = kept_threshold(processed, top_k, top_p, min_p)
    expected = processed_logits(torch.from_numpy(logits)[None], batch)[0].numpy()
    kept = processed >= threshold
    disagreeing = np.flatnonzero(kept != (expected > -np.inf)) if np.isfinite(processed).all() else []
    # sums in another order: the border of a nucleus may lie one token further
    assert len(disagreeing) <= 1
    if len(disagreeing):
        return
    assert choose(processed, threshold, seed, index, choice) == sample(torch.from_numpy(logits)[None], batch).item()


def test_a_row_without_any_possible_token_gives_a_token():
    logits = np.full(37, -np.inf, np.float32)
    processed = process_temperature(logits, 1.0)
    assert 0 <= choose(processed, np.float32(-np.inf), 1, 2, 3) < 37
    assert 0 <= choose(processed, np.float32(-1.0), 1, 2, 3) < 37


@pytest.mark.parametrize("num_top", [0, 1, 7, 499, 500])
def test_log_probabilities_are_those_of_torch(num_top):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 5, (4, 500)).astype(np.float32)
    logits[1, ::3] = -np.inf
    token_ids = np.array([0, 1, 7, 499])
    logprobs, top_ids, top_logprobs = gather_logprobs(torch.from_numpy(logits), torch.from_numpy(token_ids), num_top)
    found = logprobs_of(logits)
    np.testing.assert_allclose(found[np.arange(4), token_ids], logprobs.numpy(), atol=1e-5)
    ids, values = most_likely(found, num_top)
    np.testing.assert_allclose(values, top_logprobs.numpy(), atol=1e-5)
    is_possible = values > -np.inf
    np.testing.assert_array_equal(ids[is_possible], top_ids.numpy()[is_possible])
