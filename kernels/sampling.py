"""Choose one token a row from its logits: temperature, min_p, top_k, top_p, then arg max of logit + Gumbel noise.

The sample is a function of (logits, parameters, seed, output index, choice) of the row alone: no state, and no other
row of the batch has a part in it. Gumbel noise makes the arg max a draw from the softmax (Gumbel 1954; "Gumbel-max").

Processed logits are (logit - row maximum) / temperature: the largest is 0, so a temperature near 0 sends the others to
-inf and never makes a NaN.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .filters import kept_thresholds, take
from .philox import gumbel_rows, gumbel_tokens

_MIN_TEMPERATURE = 1e-37
"""Near float32's smallest normal number; a lower temperature is as good as 0 to any two different logits."""

PIECE_LOGITS = 1 << 19
"""Logits that are sampled from at a time, in whole rows: filters that keep them all make some 100 bytes of each."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Parameters of the k rows that sample, on the logits' device."""

    temperature: Tensor
    """float32 [k]; 0 is arg max."""
    top_k: Tensor
    """int64 [k]; 0 keeps all."""
    top_p: Tensor
    """float32 [k]"""
    min_p: Tensor
    """float32 [k]"""
    seeds: Tensor
    """int64 [k]: the bits of the 64-bit seed."""
    indexes: Tensor
    """int64 [k]: index of the output token, 0 for the first after the prompt."""
    choices: Tensor
    """int64 [k]"""

    def take(self, rows: Tensor) -> SamplingBatch:
        """The batch of these rows; int64 [r]."""
        return SamplingBatch(*(getattr(self, field.name)[rows] for field in fields(self)))


def sample(logits: Tensor, batch: SamplingBatch | None) -> Tensor:
    """logits: float32 [k, vocab]; batch None: every row is greedy. Returns int64 [k] token ids."""
    if batch is None:
        return logits.argmax(dim=1)
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    is_greedy, is_filtered = batch.temperature == 0, _is_filtered(batch)
    for rows in in_pieces(is_greedy.nonzero()[:, 0], logits.shape[1]):
        token_ids[rows] = take(logits, rows).argmax(dim=1)
    for rows in in_pieces((~is_greedy & ~is_filtered).nonzero()[:, 0], logits.shape[1]):
        token_ids[rows] = _sample_all(take(logits, rows), batch.take(rows))
    filtered = (~is_greedy & is_filtered).nonzero()[:, 0]
    if filtered.numel():
        token_ids[filtered] = _sample_filtered(logits, filtered, batch)
    return token_ids


def in_pieces(rows: Tensor, vocab_size: int) -> tuple[Tensor, ...]:
    """Row indexes [r] in parts that are worked on one after the other, at least one row each; none of no rows."""
    return rows.split(max(1, PIECE_LOGITS // vocab_size)) if rows.numel() else ()


def processed_logits(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """What rows are sampled from: float32 [r, vocab] after temperature and filters, -inf where a filter cuts. A greedy
    row's are as they come, as at temperature 1: the distribution of which the arg max is taken.

    logits: float32 [r, vocab]; batch: of the same rows.
    """
    is_greedy = batch.temperature == 0
    temperature = torch.where(is_greedy, 1.0, batch.temperature)
    processed = process_temperature(logits, temperature)
    filtered = (_is_filtered(batch) & ~is_greedy).nonzero()[:, 0]
    if filtered.numel():
        chosen, values = batch.take(filtered), take(processed, filtered)
        thresholds = kept_thresholds(values, chosen.top_k, chosen.top_p, chosen.min_p)
        processed[filtered] = torch.where(values >= thresholds[:, None], values, -torch.inf)
    return processed


def process_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """logits: float32 [r, vocab]; temperature: float32 [r], > 0. Returns float32 [r, vocab] with maximum 0 in each row
    (all -inf where no token is possible)."""
    maximum = logits.amax(dim=1, keepdim=True)
    maximum = maximum.masked_fill(maximum == -torch.inf, 0.0)
    return (logits - maximum).div_(temperature.clamp(min=_MIN_TEMPERATURE)[:, None])


def _is_filtered(batch: SamplingBatch) -> Tensor:
    """bool [r]"""
    return (batch.top_k > 0) | (batch.top_p < 1.0) | (batch.min_p > 0.0)


def _sample_all(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Rows without filters. logits: float32 [r, vocab]. Returns int64 [r]."""
    noise = gumbel_rows(batch.seeds, batch.indexes, batch.choices, logits.shape[1])
    return noise.add_(process_temperature(logits, batch.temperature)).argmax(dim=1)


def _sample_filtered(logits: Tensor, rows: Tensor, batch: SamplingBatch) -> Tensor:
    """Rows with filters: noise is made for the tokens that they keep. logits: float32 [k, vocab]; rows: int64 [f] into
    it and into the batch. Returns int64 [f].

    Thresholds are found piece by piece. Few tokens are kept as a rule: then they get their noise all at once.
    """
    vocab_size = logits.shape[1]
    kept: list[_Kept] = []
    chosen: list[Tensor] = []
    num_kept = 0
    for piece in in_pieces(rows, vocab_size):
        new = _keep(take(logits, piece), piece, batch.take(piece))
        if kept and num_kept + new.token_ids.numel() > PIECE_LOGITS:
            chosen.append(_choose(kept, batch, vocab_size))
            kept, num_kept = [], 0
        kept.append(new)
        num_kept += new.token_ids.numel()
    chosen.append(_choose(kept, batch, vocab_size))
    return torch.cat(chosen)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The m tokens that the filters of some rows keep, row after row."""

    rows: Tensor
    """int64 [r]: indexes into the batch."""
    of_row: Tensor
    """int64 [m]: indexes into `rows`."""
    token_ids: Tensor
    """int64 [m]"""
    logits: Tensor
    """float32 [m]: processed."""


def _keep(logits: Tensor, rows: Tensor, parameters: SamplingBatch) -> _Kept:
    """logits: float32 [r, vocab] of `rows`; parameters: of the same rows."""
    processed = process_temperature(logits, parameters.temperature)
    thresholds = kept_thresholds(processed, parameters.top_k, parameters.top_p, parameters.min_p)
    of_row, token_ids = (processed >= thresholds[:, None]).nonzero(as_tuple=True)
    return _Kept(rows, of_row, token_ids, processed[of_row, token_ids])


def _choose(kept: list[_Kept], batch: SamplingBatch, vocab_size: int) -> Tensor:
    """int64 [r]: the token with the highest sum of logit and noise in each row of `kept`, ties to the lowest id."""
    rows, token_ids = torch.cat([part.rows for part in kept]), torch.cat([part.token_ids for part in kept])
    firsts = itertools.accumulate((part.rows.numel() for part in kept), initial=0)
    of_row = torch.cat([part.of_row + first for part, first in zip(kept, firsts, strict=False)])
    of_batch = rows[of_row]
    noise = gumbel_tokens(batch.seeds[of_batch], batch.indexes[of_batch], batch.choices[of_batch], token_ids)
    scores = noise.add_(torch.cat([part.logits for part in kept]))
    best = torch.full(rows.shape, -torch.inf, device=rows.device).scatter_reduce_(0, of_row, scores, "amax")
    tied = torch.where(scores == best[of_row], token_ids, vocab_size)
    lowest = torch.full_like(rows, vocab_size).scatter_reduce_(0, of_row, tied, "amin")
    return lowest.clamp_(max=vocab_size - 1)
