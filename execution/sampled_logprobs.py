"""The fields of a `StepResult` about the log-probabilities of sampled tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..kernels.sampling import in_pieces, processed_logits
from .input_batch import Int32s, SamplingArrays
from .logit_changes import StepLogits
from .logprob_arrays import LogprobArrays


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
        gathered.fill(start, _logits_of(step, index, is_processed[index]), sampled[index])
        start += index.numel()
    return {
        "logprob_rows": asking.astype(np.int32).tobytes(),
        "logprobs": gathered.logprobs.tobytes(),
        "top_ids": gathered.top_ids.tobytes(),
        "top_logprobs": gathered.top_logprobs.tobytes(),
    }


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
