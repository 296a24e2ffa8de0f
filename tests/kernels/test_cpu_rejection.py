"""The host's verification of a draft beside the one in torch, whose laws have tests of their own."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels.cpu.rejection import verify
from callboard.kernels.cpu.sampling import kept_threshold, process_temperature
from callboard.kernels.rejection import verify as verify_in_torch
from callboard.tests.kernels.rejection_laws import CASES
from callboard.tests.kernels.sampling_laws import ALPHA, g_test
from callboard.tests.kernels.test_cpu_sampling import parameters


@settings(max_examples=150)
@given(
    rng=st.integers(0, 1 << 32).map(np.random.default_rng),
    size=st.sampled_from([1, 2, 5, 255, 3001]),
    spread=st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    cut=st.booleans(),
    temperature=st.sampled_from([1e-30, 0.3, 1.0, 7.0]),
    top_k=st.sampled_from([0, 1, 3, 300]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    seed=st.integers(0, (1 << 64) - 1),
    index=st.integers(0, 1 << 20),
    choice=st.integers(0, 100),
    is_drawn=st.booleans(),
    likely=st.booleans(),
)
def test_tokens_are_those_of_torch(
    rng, size, spread, cut, temperature, top_k, min_p, seed, index, choice, is_drawn, likely
):
    logits = rng.normal(0, spread, size).astype(np.float32)
    if cut:
        logits[rng.random(size) < 0.3] = -np.inf
    batch = parameters(temperature, top_k, 1.0, min_p, seed, index, choice)
    draft = int(logits.argmax()) if likely else int(rng.integers(size))
    q = torch.from_numpy(rng.normal(0, spread, size).astype(np.float32)).softmax(0) if is_drawn else None
    expected = verify_in_torch(
        torch.from_numpy(logits)[None], batch, torch.tensor([draft]), None if q is None else q[None]
    ).item()
    with np.errstate(all="ignore"):
        processed = process_temperature(logits, temperature)
        threshold = kept_threshold(processed, top_k, 1.0, min_p)
        token = verify(processed, threshold, draft, seed, index, choice, None if q is None else q.numpy())
    assert token == expected


@pytest.mark.parametrize("name", ["two tokens, the draft is likely", "four tokens, q the other way round"])
def test_tokens_have_the_law_of_the_target(name):
    case = CASES[name]
    logits, q = np.array(case.logits, np.float32), np.array(case.q, np.float32) if case.q else None
    drafts = np.random.default_rng(1).choice(len(case.q), 10_000, p=case.q) if case.q else [case.draft] * 10_000
    none = np.float32(-np.inf)
    with np.errstate(divide="ignore"):
        tokens = [
            verify(process_temperature(logits, 1.0), none, int(draft), seed, 3, 1, q)
            for seed, draft in enumerate(drafts)
        ]
    assert g_test(Counter(tokens), case.law) > ALPHA
