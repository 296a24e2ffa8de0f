"""The fields of a `StepResult` about the log-probabilities of sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..kernels.logprobs import gather_logprobs
from ..kernels.sampling import SamplingBatch, in_pieces, processed_logits
from .input_batch import Int32s, SamplingArrays
from .logprob_arrays import LogprobArrays


@dataclass(frozen=True, slots=True)
class StepLogits:
    """What the k rows of a step sample from."""

    logits: Tensor
    """float32 [k, vocab]: after bias, masks and penalties."""
    parameters: SamplingBatch | None
    """None: every row is greedy."""
    raw: dict[int, Tensor] = field(default_factory=dict)
    """Index into the k rows -> the model's own logits, float32 [vocab], where they are wanted and were changed."""


def sampled_logprobs(step: StepLogits, sampled: Tensor, rows: Int32s, arrays: SamplingArrays) -> dict[str, bytes]:
    """sampled: int64 [k]; rows: [k], of the batch. Empty if no row asks."""
    asking = np.flatnonzero(arrays.has_logprobs[rows])
    if not asking.size:
        return {}
    num_top = int(arrays.num_logprobs[rows[asking]].max())
    is_processed = torch.from_numpy(arrays.has_processed_logprobs[rows]).to(sampled.device)
    vocab_size, start = step.logits.shape[1], 0
    gathered = LogprobArrays(asking.size, num_top, vocab_size)
    for index in in_pieces(torch.from_numpy(asking).to(sampled.device), vocab_size):
        logits = _logits_of(step, index, is_processed[index])
        fill(gathered, start, logits, sampled[index])
        del logits  # before the next ones are made
        start += index.numel()
    return gathered.fields(asking)


def fill(arrays: LogprobArrays, start: int, logits: Tensor, token_ids: Tensor) -> None:
    """Tokens start .. start + n - 1. logits: [n, vocab]; token_ids: int64 [n]."""
    found = gather_logprobs(logits, token_ids, arrays.num_top)
    arrays.put(start, *(part.cpu().numpy() for part in found))


def _logits_of(step: StepLogits, index: Tensor, is_processed: Tensor) -> Tensor:
    """float32 [j, vocab]: what the rows `index`, int64 [j], want the log-probabilities of; is_processed: bool [j]."""
    logits = step.logits[index]
    if step.raw:
        for i, row in enumerate(index.tolist()):
            if (raw := step.raw.get(row)) is not None:
                logits[i] = raw
    if step.parameters is not None and bool(is_processed.any()):
        processed = is_processed.nonzero()[:, 0]
        logits[processed] = processed_logits(logits[processed], step.parameters.take(index[processed]))
    return logits
