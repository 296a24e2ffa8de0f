"""One token of a row's logits, as `kernels.sampling` chooses it; its formulas, for arrays of the host.

A token's noise is looked at only where it can matter: -log(E) <= -log(u) for E = -log1p(-u), and -log(u) is at most
(leading zeros of the word + 1) log 2, so most tokens of a row cannot exceed the best one found and cost no logarithm.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..noise import M0, M1, NOISE_FLOOR, ROUNDS, W0, W1
from .compiled import compiled
from .quantized_rows import Float32s

_CANDIDATES = (256, 4096)
"""So many of the most likely tokens are sorted at first, then more; at last all."""
_MIN_TEMPERATURE = np.float32(1e-37)
"""As in `kernels.sampling`."""
_MASK, _HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1, _W0, _W1 = np.uint64(M0), np.uint64(M1), np.uint64(W0), np.uint64(W1)
_LOG_2 = np.float32(math.log(2.0) * 1.0001)
_STEP = np.float32(-(2.0**-33))
_FLOOR = np.float32(NOISE_FLOOR)
_ONE, _TWO = np.uint64(1), np.uint64(2)


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


@compiled
def _choose(processed, threshold, key0, key1, index, choice):
    size = processed.size
    best, chosen = np.float32(-np.inf), -1
    words = np.empty(4, np.uint64)
    for first in range(0, size, 4):
        last = min(first + 4, size)
        is_kept = False
        for token in range(first, last):
            is_kept = is_kept or processed[token] >= threshold
        if not is_kept:
            continue
        c0, c1, c2, c3 = np.uint64(first // 4), index, choice, np.uint64(0)
        k0, k1 = key0, key1
        for _ in range(ROUNDS):
            p0, p1 = c0 * _M0, c2 * _M1
            c0, c2 = (p1 >> _HALF_WORD) ^ c1 ^ k0, (p0 >> _HALF_WORD) ^ c3 ^ k1
            c1, c3 = p1 & _MASK, p0 & _MASK
            k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
        words[0], words[1], words[2], words[3] = c0, c1, c2, c3
        for token in range(first, last):
            logit = processed[token]
            if logit < threshold:
                continue
            word = words[token - first]
            zeros, top = 0, np.uint64(1 << 31)
            while zeros < 32 and word < top:
                zeros, top = zeros + 1, top >> _ONE
            if logit + _LOG_2 * np.float32(zeros + 1) < best:
                continue
            noise = -math.log1p(np.float32(word * _TWO + _ONE) * _STEP)
            noise = -math.log(noise) if noise > np.float32(0.0) else np.float32(np.inf)
            score = np.float32(max(noise, _FLOOR) + logit)
            if score > best or chosen < 0:
                best, chosen = score, token
    return chosen


def choose(processed: Float32s, threshold: np.float32, seed: int, index: int, choice: int) -> int:
    """The token with the highest sum of logit and noise among the logits >= threshold, ties to the lowest id; the
    last token if there is none. processed: float32 [vocab]; seed: its 64 bits; index: of the output token."""
    key = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    chosen: int = _choose(processed, threshold, *key, np.uint64(index), np.uint64(choice))
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
