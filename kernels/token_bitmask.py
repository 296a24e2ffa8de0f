"""Forbid the tokens that a bitmask does not allow, in place.

    l[row, j] = -inf                          where bit j % 32 of word j // 32 is 0
    l[row, j] = max(l[row, j], the lowest)    where it is 1

The lowest is the lowest finite number of the logits' dtype, and of float32: other changes of logits may have made an
allowed token impossible, and a row whose mask allows a token is to have one that can be chosen, so none is all -inf.

This is the plain-torch twin, and torch's path on the CPU, where `bitmask_words` makes single truth values of the words
much faster than arithmetic does. `gpu.token_bitmask` is the kernel for GPUs, `cpu.token_bitmask` the compiled one for
numpy's arrays.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

PIECE_LOGITS = 1 << 19
"""Logits that are masked at a time, in whole rows: a bit becomes an int32."""


def lowest(dtype: torch.dtype) -> float:
    """What an allowed token has at least."""
    return max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)


def apply_token_bitmask(logits: Tensor, rows: Tensor, words: Tensor) -> None:
    """logits: [n, vocab_size] of any float dtype; rows: integers [m], the row of logits of each mask, distinct, and
    nothing where it is outside 0 .. n - 1; words: int32 [m, ceil(vocab_size / 32)]."""
    num_rows, vocab_size = logits.shape
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    masks = ((rows >= 0) & (rows < num_rows)).nonzero()[:, 0]
    for piece in masks.split(max(1, PIECE_LOGITS // vocab_size)):
        bits = (words[piece, :, None] >> shifts) & 1
        apply_token_mask(logits, rows[piece].long(), bits.flatten(1)[:, :vocab_size] == 1)


def apply_token_mask(logits: Tensor, rows: Tensor, is_allowed: Tensor) -> None:
    """As above, with a truth value for each token. rows: int64 [m], of logits; is_allowed: bool [m, vocab_size]."""
    logits[rows] = torch.where(is_allowed, logits[rows].clamp_(min=lowest(logits.dtype)), -inf)
