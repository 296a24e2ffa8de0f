"""Rejection: whether a draft is accepted, and what is drawn in its place if not, so that the token has the distribution
that it has without drafts.

    p: softmax of the processed logits, 0 where filters cut;  q: what the proposer drew the draft d from, or 1 at d and
    0 elsewhere if it did not draw
    d is accepted if u(d) q(d) <= p(d) and p(d) > 0;  else the token is arg max over j != d of log(max(p(j) - q(j), 0))
    + noise(j): a draw from the normalised rest

u and noise are uses of their own of `philox`, `ACCEPT` and `RESIDUAL`. So the token is a function of the row, its
parameters, (seed, choice, output index), and the draft with its q; a proposer may draw d with the noise of `SAMPLE`.
A rejected draft is never drawn again: the token is the draft where it is accepted and nowhere else.

Where rounding leaves no rest, the token is d if p allows it, else the likeliest.

Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", ICML 2023, appendix A.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .filters import take
from .noise import ACCEPT, RESIDUAL
from .philox import gumbel_rows, uniform_tokens
from .sampling import SamplingBatch, in_pieces, processed_logits, sample

NO_DRAFT = -1


def sample_or_verify(
    logits: Tensor, batch: SamplingBatch | None, drafts: Tensor, proposed: Tensor | None = None
) -> Tensor:
    """As `sampling.sample`, but drafts of rows that draw are verified.

    logits: float32 [k, vocab]; drafts: int64 [k], `NO_DRAFT` where there is none; proposed: float32 [d, vocab], of each
    of the d drafts the distribution that it was drawn from, None: they were not drawn. Returns int64 [k] token ids."""
    if batch is None:
        return sample(logits, None)
    is_verified = (drafts != NO_DRAFT) & (batch.temperature != 0)
    others, verified = (~is_verified).nonzero()[:, 0], is_verified.nonzero()[:, 0]
    token_ids = torch.empty_like(drafts)
    if others.numel():
        token_ids[others] = sample(take(logits, others), batch.take(others))
    of_drafts = (drafts != NO_DRAFT).cumsum(0) - 1
    for rows in in_pieces(verified, logits.shape[1]):
        drawn_from = None if proposed is None else proposed[of_drafts[rows]]
        token_ids[rows] = verify(take(logits, rows), batch.take(rows), drafts[rows], drawn_from)
    return token_ids


def verify(logits: Tensor, batch: SamplingBatch, drafts: Tensor, proposed: Tensor | None = None) -> Tensor:
    """int64 [r]: each row's draft, or what is drawn in its place.

    logits: float32 [r, vocab]; batch: of the same rows, none greedy; drafts: int64 [r]; proposed: float32 [r, vocab],
    the distribution that each draft was drawn from, None: they were not drawn.
    """
    processed = processed_logits(logits, batch)
    p = processed.softmax(dim=1)
    p_draft = p.gather(1, drafts[:, None])[:, 0]
    q_draft = 1.0 if proposed is None else proposed.gather(1, drafts[:, None])[:, 0]
    u = uniform_tokens(batch.seeds, batch.indexes, batch.choices, drafts, ACCEPT)
    rejected = (~((u * q_draft <= p_draft) & (p_draft > 0))).nonzero()[:, 0]
    token_ids = drafts.clone()
    if rejected.numel():
        rest = processed[rejected] if proposed is None else (p[rejected] - proposed[rejected]).clamp_(min=0).log_()
        rest.scatter_(1, drafts[rejected, None], -torch.inf)
        parameters = batch.take(rejected)
        noise = gumbel_rows(parameters.seeds, parameters.indexes, parameters.choices, rest.shape[1], RESIDUAL)
        drawn = noise.add_(rest).argmax(dim=1)
        allowed = torch.where(p_draft[rejected] > 0, drafts[rejected], processed[rejected].argmax(dim=1))
        token_ids[rejected] = torch.where((rest > -torch.inf).any(dim=1), drawn, allowed)
    return token_ids
