"""The tokens of the null device: a function of the request, like a model's, but of integers and quick.

Every position holds a 64-bit *trace* in place of keys and values, mix(token * 2^32 + position), and a token is drawn
from the sum of the traces of all positions before it (modulo 2^64), as attention reads all keys:

    draw  = mix(sum of traces + key),  key = 0 at temperature 0, else mix(seed + choice * GOLDEN)
    token = the end-of-sequence token if draw >> 54 == 0 (one draw in 1,024), else visible_ids[draw % len(visible_ids)]

So equal requests get equal answers whatever batch, chunks, cache hits, preemptions and restarts there were, and a block
that holds anything but what it should changes every token behind it. Of the sampling parameters only seed, temperature
(zero or not) and logprobs count. A mask moves the token to the next one that it allows.

mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .input_batch import Int32s, Int64s

UInt64s = NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, as in SplitMix64."""
EOS_SHIFT = 54
"""A draw whose highest 10 bits are zero is the end-of-sequence token."""


def mix(values: UInt64s) -> UInt64s:
    """A bijection of 64-bit numbers in which every bit of the result depends on every bit given."""
    mixed: UInt64s = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def traces_of(token_ids: Int64s, positions: Int64s) -> UInt64s:
    """[t]: what the cache holds of each token."""
    return mix((token_ids.astype(np.uint64) << np.uint64(32)) | positions.astype(np.uint64))


def keys_of(seeds: UInt64s, choices: Int64s, temperatures: NDArray[np.float32]) -> UInt64s:
    """[k]: what a request adds to its traces."""
    keys = mix(seeds + choices.astype(np.uint64) * np.uint64(GOLDEN))
    return np.where(temperatures > 0, keys, np.uint64(0))


def tokens_of(draws: UInt64s, visible_ids: Int32s, eos_token_id: int | None) -> Int32s:
    """[k]: the tokens drawn. Without an end-of-sequence token there is always a visible one."""
    token_ids: Int32s = visible_ids[draws % np.uint64(visible_ids.size)]
    if eos_token_id is None:
        return token_ids
    return np.where(draws >> np.uint64(EOS_SHIFT) == 0, np.int32(eos_token_id), token_ids)


def top_ids_of(draws: UInt64s, token_ids: Int32s, visible_ids: Int32s, num_top: int) -> Int32s:
    """[k, num_top]: the token drawn, then its neighbours in `visible_ids`; distinct if there are enough of them."""
    ranks = np.arange(num_top, dtype=np.uint64)
    indexes = (draws[:, None] % np.uint64(visible_ids.size) + ranks) % np.uint64(visible_ids.size)
    top_ids: Int32s = visible_ids[indexes]
    if num_top:
        top_ids[:, 0] = token_ids
    return top_ids


def top_logprobs_of(num_rows: int, num_top: int) -> NDArray[np.float32]:
    """[num_rows, num_top]: probabilities 1/2, 1/4, 1/8 ..."""
    ladder = -np.log(2.0) * np.arange(1, num_top + 1)
    return np.tile(ladder.astype(np.float32), (num_rows, 1))


def nearest_of(token_ids: Int32s | Int64s, visible_ids: Int32s) -> UInt64s:
    """[m]: the index in `visible_ids`, which ascend, of each token, or of the next one that is there, the first one
    behind the last."""
    return (np.searchsorted(visible_ids, token_ids) % visible_ids.size).astype(np.uint64)


def allowed_near(token_ids: Int32s, is_allowed: NDArray[np.bool_]) -> Int32s:
    """[m]: each token, or the next one that its row, bool [m, vocab_size], allows, the first one behind the last."""
    tokens = np.arange(is_allowed.shape[1]) - token_ids[:, None]
    steps = np.where(is_allowed, tokens % is_allowed.shape[1], is_allowed.shape[1])
    nearest: Int32s = steps.argmin(axis=1).astype(np.int32)
    return nearest
