"""What one request wants changed in its logits beside temperature and filters: bias, masks, penalties.

All of it is a function of the parameters, the prompt and the output so far, so it does not matter how the row came to
its tokens: by sampling them here, or with them after a preemption or a restart.

Masks that leave no token: then only `allowed_token_ids` counts at that position, and without it no mask does. So bad
words and `min_tokens` give way where they contradict what is allowed, and there is always a token to sample.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..mailbox.messages.sampling import SamplingParams
from .input_batch import Int32s, Int64s
from .token_counts import Float32s, TokenCounts

_NONE: Int64s = np.zeros(0, np.int64)


def has_row_logits(sampling: SamplingParams) -> bool:
    """Whether a request with these parameters needs a `RowLogits`."""
    return bool(
        sampling.logit_bias
        or sampling.allowed_token_ids
        or sampling.bad_token_ids
        or (sampling.min_tokens and sampling.stop_token_ids)
        or has_penalties(sampling)
    )


def has_penalties(sampling: SamplingParams) -> bool:
    """Whether any of the three penalties does anything."""
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


class RowLogits:
    """Of one row. Ids outside the vocabulary are left out: nothing can be changed about them."""

    def __init__(self, sampling: SamplingParams, prompt_ids: Int32s, vocab_size: int) -> None:
        self.sampling, self._vocab_size = sampling, vocab_size
        bias = [(token_id, value) for token_id, value in sampling.logit_bias if 0 <= token_id < vocab_size]
        self.bias_ids: Int64s = np.array([token_id for token_id, _ in bias], np.int64)
        self.bias: Float32s = np.array([value for _, value in bias], np.float32)
        self._allowed = self._in_vocabulary(sampling.allowed_token_ids)
        self._stop_ids = self._in_vocabulary(sampling.stop_token_ids)
        self._bad_ids = self._in_vocabulary(ids[0] for ids in sampling.bad_token_ids if len(ids) == 1)
        self._bad_endings: dict[int, list[tuple[int, ...]]] = {}
        """Sequences of several ids, by the last but one."""
        for ids in sampling.bad_token_ids:
            if len(ids) > 1 and 0 <= ids[-1] < vocab_size:
                self._bad_endings.setdefault(ids[-2], []).append(ids)
        self.counts: TokenCounts | None = None
        if has_penalties(sampling):
            self.counts = TokenCounts(prompt_ids if sampling.repetition_penalty != 1.0 else prompt_ids[:0])

    def masks_at(self, output: Int32s) -> tuple[Int64s, Int64s]:
        """(the only ids that are allowed, or none if there is no such limit; ids that are forbidden) for the token that
        follows `output`. Where there are ids of the first kind those of the second are out of them already."""
        forbidden = self._forbidden_at(output)
        if not self._allowed.size:
            is_all = forbidden.size >= self._vocab_size and np.unique(forbidden).size == self._vocab_size
            return _NONE, _NONE if is_all else forbidden
        if forbidden.size:
            left = self._allowed[~np.isin(self._allowed, forbidden)]
            if left.size:
                return left, _NONE
        return self._allowed, _NONE

    def _forbidden_at(self, output: Int32s) -> Int64s:
        parts = [self._bad_ids] if self._bad_ids.size else []
        if output.size < self.sampling.min_tokens:
            parts.append(self._stop_ids)
        if self._bad_endings and output.size:
            for ids in self._bad_endings.get(int(output[-1]), ()):
                if len(ids) - 1 <= output.size and tuple(output[1 - len(ids) :].tolist()) == ids[:-1]:
                    parts.append(np.array(ids[-1:], np.int64))
        return np.concatenate(parts) if parts else _NONE

    def _in_vocabulary(self, token_ids: Iterable[int]) -> Int64s:
        return np.array([token_id for token_id in token_ids if 0 <= token_id < self._vocab_size], np.int64)
