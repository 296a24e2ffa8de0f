"""Random masks, and what they do to logits, bit after bit."""

from __future__ import annotations

import numpy as np
import torch

SIZES = [1, 7, 32, 1023, 4096]
"""Of vocabularies."""
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_words(rng: np.random.Generator, num_masks: int, vocab_size: int) -> np.ndarray:
    """int32 [num_masks, ceil(vocab_size / 32)]: words of every density, with anything behind the vocabulary."""
    shape = (num_masks, -(-vocab_size // 32))
    words = rng.integers(-(2**31), 2**31, shape).astype(np.int32)
    kind = rng.integers(0, 4, shape)
    return np.where(kind == 0, 0, np.where(kind == 1, -1, np.where(kind == 2, words & -words, words))).astype(np.int32)


def random_case(vocab_size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits of 6 rows, rows of 5 masks, words): one mask is of no row, two rows have no mask; some logits are
    infinite, one row has no number at all."""
    rng = np.random.default_rng(vocab_size)
    logits = torch.from_numpy(rng.normal(0, 4, (6, vocab_size)).astype(np.float32)).to(dtype)
    logits[2, :: 1 + vocab_size // 9] = -torch.inf
    logits[4] = torch.nan
    return logits, torch.tensor([5, 2, -1, 0, 4]), torch.from_numpy(random_words(rng, 5, vocab_size))


def by_bit(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """What becomes of the logits, in plain Python."""
    made = logits.clone()
    least = max(float(torch.finfo(logits.dtype).min), float(np.finfo(np.float32).min))
    for row, mask in zip(rows.tolist(), words.tolist(), strict=True):
        if 0 <= row < len(logits):
            for token in range(logits.shape[1]):
                if not (mask[token // 32] >> (token % 32)) & 1:
                    made[row, token] = -torch.inf
                elif made[row, token] == -torch.inf:
                    made[row, token] = least
    return made


def is_bit_equal(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """NaN equals NaN."""
    return bool(torch.equal(torch.nan_to_num(ours, 12345.0), torch.nan_to_num(theirs, 12345.0)))
