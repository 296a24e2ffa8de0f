"""One token of a row's logits, as `kernels.sampling` chooses it.

A token's noise is looked at only where it can matter: -log(E) <= -log(u) for E = -log1p(-u), and -log(u) is at most
(leading zeros of the word + 1) log 2, so most tokens of a row cannot exceed the best one found and cost no logarithm.
"""

from __future__ import annotations

import math

import numpy as np

from ..noise import M0, M1, NOISE_FLOOR, ROUNDS, W0, W1
from .compiled import compiled

_MASK, _HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1, _W0, _W1 = np.uint64(M0), np.uint64(M1), np.uint64(W0), np.uint64(W1)
_LOG_2 = np.float32(math.log(2.0) * 1.0001)
_STEP = np.float32(-(2.0**-33))
_FLOOR = np.float32(NOISE_FLOOR)
_ONE, _TWO = np.uint64(1), np.uint64(2)


@compiled
def choose_token(processed, threshold, key0, key1, index, choice, words):
    """As `sampling.choose`, or -1; words: uint64 [4], to work in."""
    size = processed.size
    best, chosen = np.float32(-np.inf), -1
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
