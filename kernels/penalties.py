"""Penalties on tokens that a request has used already, in place, for the distinct tokens of each row.

    l = l / repetition if l > 0 else l * repetition      tokens in prompt or output
    l = l - frequency * count - presence                 tokens in the output, count times

In this order, as vLLM has it. Sources: Keskar et al. 2019 (CTRL) with the sign of transformers' processor for
`repetition`; OpenAI's API reference for the other two.
"""

from __future__ import annotations

import numpy as np

from .masks import Array

_LARGEST = float(np.finfo(np.float32).max)


def penalize(
    logits: Array,
    rows: Array,
    token_ids: Array,
    counts: Array,
    *,
    repetition: Array,
    frequency: Array,
    presence: Array,
) -> None:
    """logits: float32 [k, vocab]; rows, token_ids: int64 [m], distinct pairs, one for each token that stands in the
    prompt or the output of a row; counts: float32 [m], times in the output; repetition (> 0), frequency, presence:
    float32 [m], of the entry's row. A logit that would overflow becomes the largest float32: infinities less each other
    are no number."""
    used = logits[rows, token_ids]
    is_positive = used > 0
    used[is_positive] /= repetition[is_positive]
    used[~is_positive] *= repetition[~is_positive]
    used -= counts * frequency
    used -= presence * (counts > 0)
    logits[rows, token_ids] = used.clip(max=_LARGEST)
