"""Bitmasks of tokens on the host and in torch, against a loop over single bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels.bitmask_words import allowed_tokens, last_word, narrow, num_words
from callboard.kernels.token_bitmask import apply_token_bitmask, lowest
from callboard.shm_queue.mask_region import MaskLayout
from callboard.tests.kernels.bitmasks import DTYPES, SIZES, by_bit, is_bit_equal, random_case, random_words


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_twin_equals_a_loop_over_bits(vocab_size, dtype):
    logits, rows, words = random_case(vocab_size, dtype)
    expected = by_bit(logits, rows, words)
    apply_token_bitmask(logits, rows, words)
    assert is_bit_equal(logits, expected)


def test_rows_in_pieces_and_a_view_of_other_memory(monkeypatch):
    logits, rows, words = random_case(1023, torch.float32)
    wide = torch.full((len(logits), 1100), 7.0)
    view = wide[:, 5:1028]
    view.copy_(logits)
    monkeypatch.setattr("callboard.kernels.token_bitmask.PIECE_LOGITS", 1)
    apply_token_bitmask(view, rows, words)
    assert is_bit_equal(view.contiguous(), by_bit(logits, rows, words))
    assert (wide[:, :5] == 7).all() and (wide[:, 1028:] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_allowed_token_that_was_impossible_can_be_chosen(dtype):
    logits = torch.tensor([[-torch.inf] * 40], dtype=dtype)
    apply_token_bitmask(logits, torch.tensor([0]), torch.tensor([[0, 1 << 3]], dtype=torch.int32))
    assert logits[0].isfinite().nonzero().tolist() == [[35]]
    assert int(logits.argmax()) == 35
    assert float(logits[0, 35]) == lowest(dtype) <= -65504


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 101, 128_256])
def test_words_of_a_vocabulary(vocab_size):
    assert num_words(vocab_size) == MaskLayout(1, 1, vocab_size).num_words
    bits = [(int(last_word(vocab_size)) >> i) & 1 for i in range(32)]
    assert sum(bits) == vocab_size - 32 * (num_words(vocab_size) - 1)
    assert bits == sorted(bits, reverse=True)


@given(vocab_size=st.integers(1, 100), seed=st.integers(0, 99))
def test_tokens_that_words_allow(vocab_size, seed):
    words = random_words(np.random.default_rng(seed), 3, vocab_size)
    found = allowed_tokens(words, vocab_size)
    assert found.tolist() == [[bool((int(mask[j // 32]) >> (j % 32)) & 1) for j in range(vocab_size)] for mask in words]


ids = st.lists(st.integers(0, 69), max_size=60)


@settings(max_examples=200)
@given(mask=ids, allowed=ids, forbidden=ids)
def test_a_mask_loses_what_is_forbidden_unless_that_is_all(mask, allowed, forbidden):
    words = np.zeros(3, np.int32)
    for token in mask:
        words.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
    narrow(words, np.array(allowed, np.int64), np.array(forbidden, np.int64))
    left = set(mask) - set(forbidden)
    left = left & set(allowed) if allowed else left
    assert set(np.flatnonzero(allowed_tokens(words, 70)).tolist()) == (left or set(mask))
