"""Drafts that are drawn place by place, for several rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..speculative.proposer import Float32s, Int32s


def in_order(parts: Sequence[tuple[NDArray[np.intp], Float32s | None]], counts: Int32s) -> Float32s:
    """float32 [sum(counts), vocab]: what the first row's drafts were drawn from, then the second's. parts: of each
    place, (rows that have a draft there, theirs); counts: int32 [n], drafts of each row."""
    firsts = np.cumsum(counts) - counts
    there = [(place, index, probs) for place, (index, probs) in enumerate(parts) if probs is not None]
    if not there:
        return np.zeros((0, 0), np.float32)
    whole = np.zeros((int(counts.sum()), there[0][2].shape[1]), np.float32)
    for place, index, probs in there:
        whole[firsts[index] + place] = probs
    return whole
