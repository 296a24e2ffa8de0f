"""One token of a row's logits, as `kernels.sampling` chooses it; its formulas, for arrays of the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..noise import ACCEPT, RESIDUAL, SAMPLE
from .entries import choose_token
from .packed_arguments import Packed
from .quantized_rows import Float32s

_LANES = 64
"""Words of noise are made for four times as many tokens together."""
_CANDIDATES = (256, 4096)
"""So many of the most likely tokens are sorted at first, then more; at last all."""
_USES = {use: Packed(np.uint64(use)) for use in (SAMPLE, ACCEPT, RESIDUAL)}
_MIN_TEMPERATURE = np.float32(1e-37)
"""As in `kernels.sampling`."""


def process_temperature(logits: Float32s, temperature: float) -> Float32s:
    """float32 [vocab] -> (logits - maximum) / temperature, temperature > 0."""
    maximum = logits.max()
    processed = logits - (maximum if maximum > -np.inf else np.float32(0.0))
    processed /= max(np.float32(temperature), _MIN_TEMPERATURE)
    return processed


def kept_threshold(processed: Float32s, top_k: int, top_p: float, min_p: float) -> np.float32:
    """As `kernels.filters.kept_thresholds`, of one row: float32 [vocab] with maximum 0; a top_k of 0 keeps all."""
    threshold = np.float32(np.log(np.float32(min_p))) if min_p > 0.0 else np.float32(-np.inf)
    if 0 < top_k < processed.size:
        threshold = max(threshold, np.partition(processed, processed.size - top_k)[processed.size - top_k])
    if top_p < 1.0:
        threshold = max(threshold, _top_p_border(processed, threshold, top_p))
    return threshold


def _top_p_border(processed: Float32s, threshold: np.float32, top_p: float) -> np.float32:
    """The logit of the last token of the nucleus among the logits >= threshold, or -inf if rounding keeps their sum
    below top_p."""
    left = processed[processed >= threshold] if threshold > -np.inf else processed
    whole = np.exp(left).sum()
    for num_candidates in (*(size for size in _CANDIDATES if size < left.size), left.size):
        split = left.size - num_candidates
        candidates = np.sort(np.partition(left, split)[split:])[::-1]
        sums = np.cumsum(np.exp(candidates) / whole, dtype=np.float64)
        reached = int(sums.searchsorted(np.float64(np.float32(top_p))))
        if reached < candidates.size:
            return np.float32(candidates[reached])
    return np.float32(-np.inf)


def choose(processed: Float32s, threshold: np.float32, seed: int, index: int, choice: int, use: int = SAMPLE) -> int:
    """The token with the highest sum of logit and noise among the logits >= threshold, ties to the lowest id; the
    last token if there is none. processed: float32 [vocab]; seed: its 64 bits; index: of the output token; use: one
    of `noise`'s."""
    key = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    counter = np.uint64(index), np.uint64(choice), _USES[use]
    chosen = choose_token(processed, threshold, *key, *counter, np.empty((4, _LANES), np.uint64))
    return chosen if chosen >= 0 else processed.size - 1


def logprobs_of(logits: Float32s) -> Float32s:
    """Log softmax, float32 [n, vocab]; -inf where the logit is."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def most_likely(logprobs: Float32s, num_top: int) -> tuple[NDArray[np.int64], Float32s]:
    """(ids, logprobs) of the `num_top` most likely of float32 [n, vocab], [n, num_top] each, most likely first."""
    vocab_size = logprobs.shape[1]
    if not num_top:
        return np.empty((len(logprobs), 0), np.int64), np.empty((len(logprobs), 0), np.float32)
    split = vocab_size - num_top
    ids = np.sort(np.argpartition(logprobs, split, axis=1)[:, split:], axis=1)
    values = np.take_along_axis(logprobs, ids, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
