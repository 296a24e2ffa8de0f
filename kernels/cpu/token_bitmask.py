"""`kernels.token_bitmask` for numpy's arrays; its formulas, compiled: a word that allows nothing is 32 stores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .quantized_rows import Float32s

_LOWEST = np.finfo(np.float32).min
_NEVER = np.float32(-np.inf)


@compiled
def _apply(logits, rows, words):
    num_rows, vocab_size = logits.shape
    for mask in range(rows.size):
        row = rows[mask]
        if row < 0 or row >= num_rows:
            continue
        own = logits[row]
        for word in range(words.shape[1]):
            bits, first = words[mask, word], 32 * word
            size = min(32, vocab_size - first)
            if bits == 0:
                own[first : first + size] = _NEVER
                continue
            for i in range(size):
                found = own[first + i]
                found = _LOWEST if found == _NEVER else found
                own[first + i] = found if (bits >> i) & 1 else _NEVER


def apply_token_bitmask(logits: Float32s, rows: NDArray[np.int64], words: NDArray[np.int32]) -> None:
    """logits: float32 [n, vocab_size]; rows: int64 [m], the row of logits of each mask, distinct, and nothing where it
    is outside 0 .. n - 1; words: int32 [m, ceil(vocab_size / 32)]."""
    _apply(logits, rows, words)
