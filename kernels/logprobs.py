"""Log-probabilities: log softmax of logits in float32.

Of the model's own logits they are *raw*; of `sampling.processed_logits` they are *processed*, -inf for a token that a
mask or a filter takes out.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gather_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """logits: float32 [j, vocab]; token_ids: int64 [j], the sampled ones; num_top >= 0, cut to the vocabulary.
    Returns (logprobs float32 [j], top_ids int64 [j, num_top], top_logprobs float32 [j, num_top]), most likely first."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    sampled = logprobs.gather(1, token_ids[:, None])[:, 0]
    top_logprobs, top_ids = logprobs.topk(min(num_top, logits.shape[1]), dim=1)
    return sampled, top_ids, top_logprobs


def token_ranks(logits: Tensor, token_ids: Tensor) -> Tensor:
    """int64 [j]: 1 + the number of tokens that are more likely. logits: [j, vocab]; token_ids: int64 [j]."""
    return (logits > logits.gather(1, token_ids[:, None])).sum(dim=1).add_(1)
