"""The GPU's kernel for bitmasks beside its twin and a loop over bits."""

from __future__ import annotations

import pytest
import torch

from callboard.kernels.gpu.token_bitmask import apply_token_bitmask
from callboard.kernels.token_bitmask import apply_token_bitmask as twin
from callboard.tests.kernels.bitmasks import DTYPES, SIZES, by_bit, is_bit_equal, random_case
from callboard.tests.kernels.gpu import DEVICE


def applied(logits, rows, words):
    logits = logits.to(DEVICE)
    apply_token_bitmask(logits, rows.int().to(DEVICE), words.to(DEVICE))
    return logits.cpu()


@pytest.mark.parametrize("vocab_size", [*SIZES, 4097])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_equals_the_twin_and_a_loop_over_bits(vocab_size, dtype):
    logits, rows, words = random_case(vocab_size, dtype)
    found = applied(logits.clone(), rows, words)
    expected = by_bit(logits, rows, words)
    twin(logits, rows, words)
    assert is_bit_equal(found, logits)
    assert is_bit_equal(found, expected)


def test_rows_and_masks_of_wider_memory():
    logits, rows, words = random_case(1023, torch.float32)
    wide, wide_words = torch.full((6, 1100), 7.0, device=DEVICE), torch.zeros(5, 40, dtype=torch.int32, device=DEVICE)
    view, view_words = wide[:, 5:1028], wide_words[:, 3:35]
    view.copy_(logits)
    view_words.copy_(words)
    apply_token_bitmask(view, rows.int().to(DEVICE), view_words)
    assert is_bit_equal(view.cpu(), by_bit(logits, rows, words))
    assert (wide[:, :5] == 7).all() and (wide[:, 1028:] == 7).all()


def test_masks_without_a_row_change_nothing():
    logits, _, words = random_case(4096, torch.bfloat16)
    assert is_bit_equal(applied(logits.clone(), torch.tensor([-1, 6, 7, -3, 1000]), words), logits)
