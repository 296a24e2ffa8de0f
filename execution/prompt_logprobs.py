"""Log-probabilities of prompt tokens, from the hidden states of a step: raw, as prompts are not sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..kernels.logprobs import token_ranks
from ..mailbox.messages.steps import PromptLogprobs
from .logprob_arrays import LogprobArrays
from .prompt_pieces import PromptPieces
from .sampled_logprobs import fill

PROMPT_LOGITS = 1 << 21
"""Logits made at a time, in whole rows, whatever the length of a chunk: some 9 bytes each are held."""
DEVICE_PROMPT_LOGITS = 1 << 24
"""On a device that reads the whole head for each time, and is asked for the result."""


def prompt_logprobs(
    pieces: PromptPieces, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor], vocab_size: int
) -> PromptLogprobs:
    """hidden: [t, hidden_size] of the step; compute_logits: [n, hidden_size] -> float32 [n, vocab_size]."""
    predictors, token_ids = (torch.from_numpy(a).to(hidden.device) for a in (pieces.predictors, pieces.token_ids))
    arrays = LogprobArrays(pieces.token_ids.size, pieces.num_top, vocab_size)
    ranks = np.empty(pieces.token_ids.size, np.int32)
    for part in parts_of(pieces, hidden.device, vocab_size):
        logits = compute_logits(hidden[predictors[part]])
        ranks[part] = token_ranks(logits, token_ids[part]).cpu().numpy()
        fill(arrays, part.start, logits, token_ids[part])
        del logits  # before the next ones are made
    return pieces.encode(arrays.logprobs, ranks, arrays.top_ids, arrays.top_logprobs)


def parts_of(pieces: PromptPieces, device: torch.device, vocab_size: int) -> Iterator[slice]:
    """Which of the tokens have their logits made together, one part after the other."""
    most = PROMPT_LOGITS if device.type == "cpu" else DEVICE_PROMPT_LOGITS
    at_once = max(1, most // vocab_size)
    for start in range(0, pieces.token_ids.size, at_once):
        yield slice(start, start + at_once)
