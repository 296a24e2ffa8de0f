"""Log-probabilities on the host, filled a part at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.logprobs import gather_logprobs


class LogprobArrays:
    """Of `num_tokens` tokens and the `num_top` most likely in place of each (cut to the vocabulary).

    Made in one piece beforehand: results kept from each part would lie between the logits in the C library's heap,
    which then takes new memory for those of the next part.
    """

    def __init__(self, num_tokens: int, num_top: int, vocab_size: int) -> None:
        self.num_top = min(num_top, vocab_size)
        self.logprobs: NDArray[np.float32] = np.empty(num_tokens, np.float32)
        self.top_ids: NDArray[np.int32] = np.empty((num_tokens, self.num_top), np.int32)
        self.top_logprobs: NDArray[np.float32] = np.empty((num_tokens, self.num_top), np.float32)

    def fill(self, start: int, logits: Tensor, token_ids: Tensor) -> None:
        """Tokens start .. start + n - 1. logits: [n, vocab]; token_ids: int64 [n]."""
        part = slice(start, start + token_ids.shape[0])
        logprobs, top_ids, top_logprobs = gather_logprobs(logits, token_ids, self.num_top)
        self.logprobs[part] = logprobs.cpu().numpy()
        self.top_ids[part] = top_ids.cpu().numpy()
        self.top_logprobs[part] = top_logprobs.cpu().numpy()
