"""Masks of tokens as 32-bit words on the host: bit i % 32 of word i // 32 allows token i. No torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

WORD_BITS = 32


def num_words(vocab_size: int) -> int:
    """Of one mask."""
    return -(-vocab_size // WORD_BITS)


def last_word(vocab_size: int) -> np.int32:
    """The bits of the last word that stand for tokens; those behind them mean nothing."""
    num_bits = vocab_size - WORD_BITS * (num_words(vocab_size) - 1)
    return np.array([(1 << num_bits) - 1], np.uint32).view(np.int32)[0]


def allowed_tokens(words: Int32s, vocab_size: int) -> Bools:
    """int32 [..., num_words] -> bool [..., vocab_size]."""
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=vocab_size, bitorder="little").view(np.bool_)


def narrow(words: Int32s, allowed: Int64s, forbidden: Int64s) -> None:
    """Take out of one mask, int32 [num_words], all but `allowed`, if there are any, and what is `forbidden`; ids may
    repeat. Where that would leave no token the mask stays as it is."""
    left = words.view(np.uint32).copy()
    if allowed.size:
        only = np.zeros_like(left)
        np.bitwise_or.at(only, allowed // WORD_BITS, _bits(allowed))
        left &= only
    if forbidden.size:
        np.bitwise_and.at(left, forbidden // WORD_BITS, ~_bits(forbidden))
    if left.any():
        words[:] = left.view(np.int32)


def _bits(token_ids: Int64s) -> NDArray[np.uint32]:
    return np.uint32(1) << (token_ids % WORD_BITS).astype(np.uint32)
