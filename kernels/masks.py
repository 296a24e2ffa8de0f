"""Changes of single logits that forbid or favour tokens, in place, for the few entries that requests name.

    add_bias:   l[row, id] += bias
    forbid:     l[row, id] = -inf
    allow_only: l[row, id] = -inf for every id that is not named for the row

An entry is a pair (rows[i], token_ids[i]), int64 [m] each, of a matrix of logits, float32 [k, vocab]. All are tensors
on one device, or all are arrays.
"""

from __future__ import annotations

from math import inf
from typing import Any

Array = Any
"""A tensor or an array."""


def add_bias(logits: Array, rows: Array, token_ids: Array, bias: Array) -> None:
    """bias: float32 [m]; entries are distinct."""
    logits[rows, token_ids] += bias


def forbid(logits: Array, rows: Array, token_ids: Array) -> None:
    """Entries may repeat."""
    logits[rows, token_ids] = -inf


def allow_only(logits: Array, limited_rows: Array, rows: Array, token_ids: Array) -> None:
    """limited_rows: int64 [r], each of which has entries; other rows are left alone. Entries may repeat."""
    allowed = logits[rows, token_ids]
    logits[limited_rows] = -inf
    logits[rows, token_ids] = allowed
