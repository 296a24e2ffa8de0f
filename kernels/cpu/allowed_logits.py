"""`token_bitmask`, compiled: a word that allows nothing is 32 stores."""

from __future__ import annotations

import numpy as np

from .compiled import compiled

_LOWEST = np.finfo(np.float32).min
_NEVER = np.float32(-np.inf)


@compiled
def forbid_others(logits, rows, words):
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
