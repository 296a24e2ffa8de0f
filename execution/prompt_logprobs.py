"""Log-probabilities of prompt tokens, from the hidden states of a step: raw, as prompts are not sampled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..kernels.logprobs import gather_logprobs, token_ranks
from ..mailbox.messages.steps import PromptLogprobs
from .prompt_pieces import PromptPieces

PROMPT_LOGITS = 1 << 21
"""Logits made at a time, in whole rows, whatever the length of a chunk: some 9 bytes each are held."""


def prompt_logprobs(
    pieces: PromptPieces, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor], vocab_size: int
) -> PromptLogprobs:
    """hidden: [t, hidden_size] of the step; compute_logits: [n, hidden_size] -> float32 [n, vocab_size]."""
    predictors, token_ids = (torch.from_numpy(a).to(hidden.device) for a in (pieces.predictors, pieces.token_ids))
    at_once = max(1, PROMPT_LOGITS // vocab_size)
    parts = []
    for rows, ids in zip(torch.split(predictors, at_once), torch.split(token_ids, at_once), strict=True):
        logits = compute_logits(hidden[rows])
        part = (token_ranks(logits, ids), *gather_logprobs(logits, ids, pieces.num_top))
        parts.append([tensor.cpu() for tensor in part])
    ranks, logprobs, top_ids, top_logprobs = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
    return pieces.encode(logprobs, ranks.astype(np.int32), top_ids.astype(np.int32), top_logprobs)
