"""Bias and masks against plain loops, and transformers' processor for biases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import SequenceBiasLogitsProcessor

from callboard.kernels.masks import add_bias, allow_only, forbid

K, VOCAB = 5, 37
entries = st.lists(st.tuples(st.integers(0, K - 1), st.integers(0, VOCAB - 1)), min_size=1, max_size=60, unique=True)


def random_logits(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 3, (K, VOCAB)).astype(np.float32))


def split(pairs):
    return torch.tensor([row for row, _ in pairs]), torch.tensor([token for _, token in pairs])


@settings(max_examples=40, deadline=None)
@given(pairs=entries, seed=st.integers(0, 1000))
def test_each_mask_equals_a_loop(pairs, seed):
    rows, token_ids = split(pairs)
    before = random_logits(seed)
    bias = torch.randn(len(pairs), generator=torch.Generator().manual_seed(seed))
    biased, forbidden, allowed = before.clone(), before.clone(), before.clone()
    add_bias(biased, rows, token_ids, bias)
    forbid(forbidden, rows, token_ids)
    limited = torch.tensor(sorted({row for row, _ in pairs}))
    allow_only(allowed, limited, rows, token_ids)
    amount = dict(zip(pairs, bias.numpy(), strict=True))
    biased, forbidden, allowed, before = (tensor.numpy() for tensor in (biased, forbidden, allowed, before))
    for row in range(K):
        is_limited = row in limited
        for token in range(VOCAB):
            old, is_named = before[row, token], (row, token) in amount
            assert biased[row, token] == old + amount.get((row, token), 0)
            assert forbidden[row, token] == (-np.inf if is_named else old)
            assert allowed[row, token] == (old if is_named or not is_limited else -np.inf)


def test_bias_equals_transformers():
    before = random_logits(1)
    bias = {3: 5.0, 0: -100.0, 36: 0.25}
    expected = SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})(
        torch.zeros(K, 4, dtype=torch.int64), before.clone()
    )
    rows = torch.arange(K).repeat_interleave(3)
    add_bias(before, rows, torch.tensor([3, 0, 36]).repeat(K), torch.tensor([5.0, -100.0, 0.25]).repeat(K))
    assert torch.equal(before, expected)


@pytest.mark.parametrize("change", [forbid, lambda logits, rows, ids: allow_only(logits, rows.unique(), rows, ids)])
def test_entries_of_a_mask_may_repeat(change):
    rows, ids = torch.tensor([1, 1, 1]), torch.tensor([4, 5, 4])
    repeated, once = random_logits(), random_logits()
    change(repeated, rows, ids)
    change(once, rows[:2], ids[:2])
    assert torch.equal(repeated, once)
