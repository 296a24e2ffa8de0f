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

_NUM_CANDIDATES = 256
"""Sorted at first; a row whose top_p border lies further down is sorted in full."""


def kept_thresholds(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """logits: float32 [r, vocab], the row's maximum is 0; top_k: int64 [r], 0 keeps all; top_p, min_p: float32 [r].
    Returns float32 [r]: keep logits >= threshold. -inf where nothing is filtered."""
    vocab_size = logits.shape[1]
    thresholds = torch.log(min_p)
    top_k = torch.where((top_k <= 0) | (top_k > vocab_size), 0, top_k)
    max_k = int(top_k.max())
    has_top_p = top_p < 1.0
    if max_k == 0 and not bool(has_top_p.any()):
        return thresholds
    num_candidates = min(vocab_size, max(max_k, _NUM_CANDIDATES if bool(has_top_p.any()) else 1))
    candidates, ids = logits.topk(num_candidates, dim=1)
    kth = candidates.gather(1, (top_k - 1).clamp_(min=0)[:, None])[:, 0]
    thresholds = torch.where(top_k > 0, torch.maximum(thresholds, kth), thresholds)
    nucleus = has_top_p.nonzero()[:, 0]
    if nucleus.numel():
        border = _top_p_borders(logits, candidates, ids, thresholds, top_p, nucleus)
        thresholds = thresholds.index_copy(0, nucleus, torch.maximum(thresholds[nucleus], border))
    return thresholds


def _top_p_borders(
    logits: Tensor, candidates: Tensor, ids: Tensor, thresholds: Tensor, top_p: Tensor, rows: Tensor
) -> Tensor:
    """The logit of the last token of each nucleus, float32 [len(rows)]; candidates, ids: logits sorted, [r, c]."""
    logits, top_p = logits[rows], top_p[rows].double()
    filtered = logits.masked_fill(logits < thresholds[rows][:, None], -torch.inf)
    probabilities = torch.softmax(filtered, dim=1)
    candidates = candidates[rows]
    border, is_reached = _crossing(candidates, probabilities.gather(1, ids[rows]), top_p)
    missing = (~is_reached).nonzero()[:, 0]
    if missing.numel() and candidates.shape[1] < logits.shape[1]:
        everything, order = filtered[missing].sort(dim=1, descending=True)
        found, _ = _crossing(everything, probabilities[missing].gather(1, order), top_p[missing])
        border = border.index_copy(0, missing, found)
    return border


def _crossing(candidates: Tensor, probabilities: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """(logit of the first candidate with which the sum reaches top_p, -inf if there is none; whether there is one),
    both [r]. Rounding may keep the sum of all tokens below top_p: then nothing is cut."""
    reached = probabilities.double().cumsum(1) >= top_p[:, None]
    first = reached.to(torch.uint8).argmax(1)
    is_reached = reached.any(1)
    border = candidates.gather(1, first[:, None])[:, 0]
    return torch.where(is_reached, border, -torch.inf), is_reached
