"""The compiled path for bitmasks against a loop over bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.kernels.cpu.token_bitmask import apply_token_bitmask
from callboard.tests.kernels.bitmasks import SIZES, by_bit, is_bit_equal, random_case


@pytest.mark.parametrize("vocab_size", SIZES)
def test_it_equals_a_loop_over_bits(vocab_size):
    logits, rows, words = random_case(vocab_size, torch.float32)
    found = logits.numpy().copy()
    apply_token_bitmask(found, rows.numpy(), words.numpy())
    assert is_bit_equal(torch.from_numpy(found), by_bit(logits, rows, words))


def test_no_masks_at_all():
    logits, _, words = random_case(40, torch.float32)
    found = logits.numpy().copy()
    apply_token_bitmask(found, np.empty(0, np.int64), words.numpy()[:0])
    assert is_bit_equal(torch.from_numpy(found), logits)
