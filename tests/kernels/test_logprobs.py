"""Raw log-probabilities against a float64 computation in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.kernels.logprobs import gather_logprobs, token_ranks


@pytest.mark.parametrize("vocab_size", [1, 7, 1023, 4096])
@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_equal_to_float64(vocab_size, num_top):
    rng = np.random.default_rng(vocab_size)
    logits = rng.normal(0, 5, (3, vocab_size)).astype(np.float32)
    token_ids = rng.integers(0, vocab_size, 3)
    logprobs, top_ids, top_logprobs = gather_logprobs(torch.from_numpy(logits), torch.from_numpy(token_ids), num_top)
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    np.testing.assert_allclose(logprobs.numpy(), expected[np.arange(3), token_ids], atol=1e-5)
    order = np.argsort(-expected, axis=1)[:, :num_top]
    assert top_ids.tolist() == order.tolist()
    np.testing.assert_allclose(top_logprobs.numpy(), np.take_along_axis(expected, order, 1), atol=1e-5)
    assert logprobs.dtype == top_logprobs.dtype == torch.float32


def test_impossible_token_has_minus_infinity():
    logits = torch.tensor([[0.0, -torch.inf]])
    assert gather_logprobs(logits, torch.tensor([1]), 2)[0].tolist() == [-np.inf]


def test_ranks_are_1_and_the_number_of_tokens_above():
    logits = np.random.default_rng(0).integers(-3, 4, (7, 50)).astype(np.float32)  # with ties
    logits[3, 5] = -np.inf
    token_ids = np.array([0, 3, 9, 5, 49, 20, 31])
    expected = [1 + (row > row[token]).sum() for row, token in zip(logits, token_ids, strict=True)]
    assert token_ranks(torch.from_numpy(logits), torch.from_numpy(token_ids)).tolist() == expected
    assert token_ranks(torch.from_numpy(logits), torch.from_numpy(logits.argmax(1))).tolist() == [1] * 7
