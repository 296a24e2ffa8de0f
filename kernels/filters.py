"""min_p, top_k and top_p as one number a row: the least processed logit that is kept.

Each filter keeps the most likely tokens, so each is a threshold, and the strictest one wins. Tokens that tie with the
last one kept stay too; so the kept set does not depend on the order of a sort, nor on the other rows of the batch.

    min_p: l >= max + log(min_p)
    top_k: l >= the k-th largest
    top_p: over what min_p and top_k left, renormalised: sorted, the token with which the sum reaches top_p is the last
"""

from __future__ import annotations

import torch
from torch import Tensor

_CANDIDATES = (256, 4096)
"""So many of the most likely tokens are sorted at first, then more; a row whose top_p border lies further down is
sorted in full."""


def kept_thresholds(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """logits: float32 [r, vocab], the row's maximum is 0; top_k: int64 [r], 0 keeps all; top_p, min_p: float32 [r].
    Returns float32 [r]: keep logits >= threshold. -inf where nothing is filtered."""
    thresholds = torch.log(min_p)
    limited = ((top_k > 0) & (top_k < logits.shape[1])).nonzero()[:, 0]
    if limited.numel():
        kth = _kth_largest(take(logits, limited), top_k[limited])
        thresholds[limited] = torch.maximum(thresholds[limited], kth)
    nucleus = (top_p < 1.0).nonzero()[:, 0]
    if nucleus.numel():
        border = _top_p_borders(take(logits, nucleus), thresholds[nucleus], top_p[nucleus])
        thresholds[nucleus] = torch.maximum(thresholds[nucleus], border)
    return thresholds


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows] for increasing, distinct rows: not a copy where they are all of them."""
    return x if rows.numel() == x.shape[0] else x[rows]


def _kth_largest(logits: Tensor, top_k: Tensor) -> Tensor:
    """float32 [r]; 1 <= top_k <= vocab."""
    largest = logits.topk(int(top_k.max()), dim=1).values
    return largest.gather(1, (top_k - 1)[:, None])[:, 0]


def _top_p_borders(logits: Tensor, thresholds: Tensor, top_p: Tensor) -> Tensor:
    """The logit of the last token of each nucleus among the logits >= threshold, float32 [r]."""
    if bool((thresholds > -torch.inf).any()):
        logits = torch.where(logits >= thresholds[:, None], logits, -torch.inf)
    probabilities = torch.softmax(logits, dim=1)
    vocab_size = logits.shape[1]
    borders, pending = torch.empty_like(thresholds), torch.arange(logits.shape[0], device=logits.device)
    for num_candidates in (*(size for size in _CANDIDATES if size < vocab_size), vocab_size):
        candidates, ids = take(logits, pending).topk(num_candidates, dim=1)
        found, is_reached = _crossing(candidates, take(probabilities, pending).gather(1, ids), top_p[pending])
        borders[pending] = found
        pending = pending[~is_reached]
        if not pending.numel():
            break
    return borders


def _crossing(candidates: Tensor, probabilities: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """(logit of the first candidate with which the sum reaches top_p, -inf if there is none; whether there is one),
    both [r]. Rounding may keep the sum of all tokens below top_p: then nothing is cut."""
    reached = probabilities.double().cumsum(1) >= top_p.double()[:, None]
    first = reached.to(torch.uint8).argmax(1)
    is_reached = reached.any(1)
    border = candidates.gather(1, first[:, None])[:, 0]
    return torch.where(is_reached, border, -torch.inf), is_reached
