"""Choose one token a row from its logits: temperature, min_p, top_k, top_p, then arg max of logit + Gumbel noise.

The sample is a function of (logits, parameters, seed, output index, choice) of the row alone: no state, and no other
row of the batch has a part in it. Gumbel noise makes the arg max a draw from the softmax (Gumbel 1954; "Gumbel-max").

Processed logits are (logit - row maximum) / temperature: the largest is 0, so a temperature near 0 sends the others to
-inf and never makes a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .filters import kept_thresholds, take
from .philox import gumbel_rows, gumbel_tokens

_MIN_TEMPERATURE = 1e-37
"""Near float32's smallest normal number; a lower temperature is as good as 0 to any two different logits."""


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
    is_greedy = batch.temperature == 0
    greedy, rows = is_greedy.nonzero()[:, 0], (~is_greedy).nonzero()[:, 0]
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if greedy.numel():
        token_ids[greedy] = take(logits, greedy).argmax(dim=1)
    if rows.numel():
        chosen = batch.take(rows)
        processed = process_temperature(take(logits, rows), chosen.temperature)
        token_ids[rows] = _sample_processed(processed, chosen)
    return token_ids


def process_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """logits: float32 [r, vocab]; temperature: float32 [r], > 0. Returns float32 [r, vocab] with maximum 0 in each row
    (all -inf where no token is possible)."""
    maximum = logits.amax(dim=1, keepdim=True)
    maximum = maximum.masked_fill(maximum == -torch.inf, 0.0)
    return (logits - maximum).div_(temperature.clamp(min=_MIN_TEMPERATURE)[:, None])


def _sample_processed(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """int64 [r] ids; logits: processed, float32 [r, vocab]."""
    is_filtered = (batch.top_k > 0) | (batch.top_p < 1.0) | (batch.min_p > 0.0)
    filtered, unfiltered = is_filtered.nonzero()[:, 0], (~is_filtered).nonzero()[:, 0]
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    if unfiltered.numel():
        noise = gumbel_rows(
            batch.seeds[unfiltered], batch.indexes[unfiltered], batch.choices[unfiltered], logits.shape[1]
        )
        token_ids[unfiltered] = noise.add_(take(logits, unfiltered)).argmax(dim=1)
    if filtered.numel():
        token_ids[filtered] = _sample_filtered(take(logits, filtered), filtered, batch)
    return token_ids


def _sample_filtered(logits: Tensor, rows: Tensor, batch: SamplingBatch) -> Tensor:
    """The rows with filters: noise is made for the kept tokens only. logits: [f, vocab]; rows: int64 [f] into batch."""
    thresholds = kept_thresholds(logits, batch.top_k[rows], batch.top_p[rows], batch.min_p[rows])
    of_row, token_ids = (logits >= thresholds[:, None]).nonzero(as_tuple=True)
    of_batch = rows[of_row]
    noise = gumbel_tokens(batch.seeds[of_batch], batch.indexes[of_batch], batch.choices[of_batch], token_ids)
    scores = noise.add_(logits[of_row, token_ids])
    best = torch.full_like(thresholds, -torch.inf).scatter_reduce_(0, of_row, scores, "amax")
    vocab_size = logits.shape[1]
    tied = torch.where(scores == best[of_row], token_ids, vocab_size)
    lowest = torch.full_like(rows, vocab_size).scatter_reduce_(0, of_row, tied, "amin")
    return lowest.clamp_(max=vocab_size - 1)
