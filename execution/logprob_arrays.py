"""Log-probabilities on the host, filled a part at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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

    def put(
        self,
        start: int,
        logprobs: NDArray[np.float32],
        top_ids: NDArray[np.int32] | NDArray[np.int64],
        top_logprobs: NDArray[np.float32],
    ) -> None:
        """Tokens start .. start + n - 1. logprobs: [n]; top_ids, top_logprobs: [n, num_top]"""
        part = slice(start, start + len(logprobs))
        self.logprobs[part] = logprobs
        self.top_ids[part] = top_ids
        self.top_logprobs[part] = top_logprobs

    def fields(self, asking: NDArray[np.int64]) -> dict[str, bytes]:
        """Those of a `StepResult`; asking: which of the rows that sample these are."""
        return {
            "logprob_rows": asking.astype(np.int32).tobytes(),
            "logprobs": self.logprobs.tobytes(),
            "top_ids": self.top_ids.tobytes(),
            "top_logprobs": self.top_logprobs.tobytes(),
        }
