"""`kernels.token_bitmask` for numpy's arrays, in compiled code (`allowed_logits`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .entries import forbid_others
from .quantized_rows import Float32s


def apply_token_bitmask(logits: Float32s, rows: NDArray[np.int64], words: NDArray[np.int32]) -> None:
    """logits: float32 [n, vocab_size]; rows: int64 [m], the row of logits of each mask, distinct, and nothing where it
    is outside 0 .. n - 1; words: int32 [m, ceil(vocab_size / 32)]."""
    forbid_others(logits, rows, words)
