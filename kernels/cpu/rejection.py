"""A draft of one row, verified as `kernels.rejection` does it; its formulas, for arrays of the host."""

from __future__ import annotations

import numpy as np

from ..noise import ACCEPT, M0, M1, RESIDUAL, ROUNDS, W0, W1
from .quantized_rows import Float32s
from .sampling import choose

_MASK = 0xFFFFFFFF


def verify(
    processed: Float32s,
    threshold: np.float32,
    draft: int,
    seed: int,
    index: int,
    choice: int,
    proposed: Float32s | None = None,
) -> int:
    """The draft, or what is drawn in its place. processed: float32 [vocab] with maximum 0, overwritten, of which the
    logits >= threshold are kept; seed: its 64 bits; index: of the output token; proposed: float32 [vocab], what the
    draft was drawn from, None: it was not drawn."""
    p = np.exp(processed)
    p[processed < threshold] = 0.0
    p /= p.sum()
    p_draft, likeliest = p[draft], int(processed.argmax())
    q_draft = np.float32(1.0) if proposed is None else proposed[draft]
    if p_draft > 0 and _uniform(draft, seed, index, choice) * q_draft <= p_draft:
        return draft
    if proposed is None:
        rest, least = processed, threshold
    else:
        rest, least = np.log(np.maximum(p - proposed, np.float32(0.0))), np.float32(-np.inf)
    rest[draft] = -np.inf
    most = rest.max()
    if most > -np.inf and most >= least:
        return choose(rest, least, seed, index, choice, RESIDUAL)
    return draft if p_draft > 0 else likeliest


def _uniform(token: int, seed: int, index: int, choice: int) -> np.float32:
    """`philox.uniform_tokens` of one token, use `ACCEPT`."""
    c0, c1, c2, c3 = token // 4, index, choice, ACCEPT
    k0, k1 = seed & _MASK, seed >> 32
    for _ in range(ROUNDS):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + W0) & _MASK, (k1 + W1) & _MASK
    return np.float32(2 * (c0, c1, c2, c3)[token % 4] + 1) * np.float32(2.0**-33)
