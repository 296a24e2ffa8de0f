"""Changes of single logits that forbid or favour tokens, in place, for the few entries that requests name.

    add_bias:   l[row, id] += bias
    forbid:     l[row, id] = -inf
    allow_only: l[row, id] = -inf for every id that is not named for the row

An entry is a pair (rows[i], token_ids[i]), int64 [m] each, of a matrix of logits, float32 [k, vocab].
"""

from __future__ import annotations

import torch
from torch import Tensor


def add_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, bias: Tensor) -> None:
    """bias: float32 [m]; entries are distinct."""
    logits[rows, token_ids] += bias


def forbid(logits: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Entries may repeat."""
    logits[rows, token_ids] = -torch.inf


def allow_only(logits: Tensor, limited_rows: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """limited_rows: int64 [r], each of which has entries; other rows are left alone. Entries may repeat."""
    allowed = logits[rows, token_ids]
    logits[limited_rows] = -torch.inf
    logits[rows, token_ids] = allowed
