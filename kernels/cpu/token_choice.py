"""One token of a row's logits, as `kernels.sampling` chooses it.

A token's noise is looked at only where it can matter: -log(E) <= -log(u) for E = -log1p(-u), and -log(u) is at most
(leading zeros of the word + 1) log 2, so a token that lacks n log 2 to the best one found needs n leading zeros, and
most tokens of a row cost a shift and no logarithm.
"""

from __future__ import annotations

import math

import numpy as np

from ..noise import M0, M1, NOISE_FLOOR, ROUNDS, W0, W1
from .compiled import compiled

_MASK, _HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_M0, _M1, _W0, _W1 = np.uint64(M0), np.uint64(M1), np.uint64(W0), np.uint64(W1)
_BITS, _NONE = np.uint64(32), np.uint64(0)
_PER_LOG_2 = np.float32(0.9999 / math.log(2.0))
_MOST = np.float32(32.0 * math.log(2.0))
_ZERO = np.float32(0.0)
_STEP = np.float32(-(2.0**-33))
_FLOOR = np.float32(NOISE_FLOOR)
_ONE, _TWO = np.uint64(1), np.uint64(2)


@compiled
def choose_token(processed, threshold, key0, key1, index, choice, use, words):
    """As `sampling.choose`, or -1; words: uint64 [4, lanes], to work in."""
    size, together = processed.size, 4 * words.shape[1]
    best, chosen = np.float32(-np.inf), -1
    for first in range(0, size, together):
        last = min(first + together, size)
        most = _most(processed, first, last)
        if most < threshold:
            continue
        _fill_words(words, np.uint64(first // 4), key0, key1, index, choice, use)
        if chosen >= 0 and not _has_zeros(words, _num_zeros(best - most)):
            continue
        for token in range(first, last):
            logit = processed[token]
            if logit < threshold:
                continue
            word = words[(token - first) % 4, (token - first) // 4]
            if chosen >= 0 and word >> (_BITS - _num_zeros(best - logit)) != _NONE:
                continue
            noise = -math.log1p(np.float32(word * _TWO + _ONE) * _STEP)
            noise = -math.log(noise) if noise > _ZERO else np.float32(np.inf)
            score = np.float32(max(noise, _FLOOR) + logit)
            if score > best or chosen < 0:
                best, chosen = score, token
    return chosen


@compiled
def _num_zeros(lacking):
    """Leading zeros without which a word's noise is below `lacking`; uint64, at most 32."""
    if not lacking < _MOST:
        return _BITS
    return np.uint64(lacking * _PER_LOG_2) if lacking > _ZERO else _NONE


@compiled
def _has_zeros(words, num_zeros):
    """Whether some word has so many leading zeros."""
    shift, is_found = _BITS - num_zeros, False
    for part in range(words.shape[0]):
        for lane in range(words.shape[1]):
            is_found |= words[part, lane] >> shift == _NONE
    return is_found


@compiled
def _most(processed, first, last):
    """The largest of processed[first:last]; four at once, which depend on nothing but each other."""
    m0 = m1 = m2 = m3 = np.float32(-np.inf)
    for token in range(first, last - 3, 4):
        m0, m1 = max(m0, processed[token]), max(m1, processed[token + 1])
        m2, m3 = max(m2, processed[token + 2]), max(m3, processed[token + 3])
    for token in range(last - (last - first) % 4, last):
        m0 = max(m0, processed[token])
    return max(max(m0, m1), max(m2, m3))


@compiled
def _fill_words(words, counter, key0, key1, index, choice, use):
    """Philox 4x32: words[:, i] of counter + i. Lane by lane, so that the compiler puts several into one instruction."""
    num_lanes = words.shape[1]
    for lane in range(num_lanes):
        words[0, lane], words[1, lane] = counter + np.uint64(lane), index
        words[2, lane], words[3, lane] = choice, use
    k0, k1 = key0, key1
    for _ in range(ROUNDS):
        for lane in range(num_lanes):
            p0, p1 = (words[0, lane] & _MASK) * _M0, (words[2, lane] & _MASK) * _M1
            words[0, lane] = (p1 >> _HALF_WORD) ^ words[1, lane] ^ k0
            words[2, lane] = (p0 >> _HALF_WORD) ^ words[3, lane] ^ k1
            words[1, lane], words[3, lane] = p1 & _MASK, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
