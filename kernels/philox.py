"""Philox4x32-10 and the Gumbel noise made from it: the only source of randomness in sampling.

    word(seed, token, index, choice, use) =
        philox4x32_10(key = seed, counter = (token // 4, index, choice, use))[token % 4]
    u = (word + 0.5) / 2^32,  noise = -log(-log1p(-u)), float32

`use` is `noise.SAMPLE`, 0, for the noise that tokens are drawn with.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, and the known-answer
vectors of its reference implementation. A word is held in an int64, 0 <= word < 2^32, since torch has no full uint32
arithmetic: a 32 x 32 bit product may wrap into the sign bit, and the masks after each shift take that out again.

A u that rounds to 1 would give -inf; it becomes `NOISE_FLOOR`, so that such a token loses against every other candidate
but still wins where it is the only one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .noise import M0, M1, NOISE_FLOOR, ROUNDS, SAMPLE, W0, W1

_MASK = 0xFFFFFFFF
_CACHED_COUNTERS = 1 << 14
"""Counters handled at once on a CPU: the words of so many, 128 KiB each, stay in its second-level cache."""


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words from four counter words and two key words: int64 tensors in [0, 2^32) that broadcast together.
    The results may be of smaller shapes that broadcast, never of the arguments' memory."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # In the first rounds most of these are one number a row; they grow to the full shape only where they must.
        # c1 and c3 keep the high half of their product: one mask after the exclusive-or takes out all high halves.
        p0, p1 = c0 * M0, c2 * M1
        c0, c2 = _mix(p1, c1, k0), _mix(p0, c3, k1)
        c1, c3 = p1, p0
        k0, k1 = (k0 + W0) & _MASK, (k1 + W1) & _MASK
    return c0, c1.bitwise_and_(_MASK), c2, c3.bitwise_and_(_MASK)


def _mix(product: Tensor, word: Tensor, key: Tensor) -> Tensor:
    """(high half of product) xor word xor key, in [0, 2^32)."""
    high = product >> 32
    # In place where the shape allows: memory traffic is what this function costs. (torch.broadcast_shapes would do for
    # the question, but its first call loads sympy, for most of a second.)
    is_full = high.shape == np.broadcast_shapes(high.shape, word.shape)
    mixed = high.bitwise_xor_(word) if is_full else high ^ word
    return mixed.bitwise_xor_(key).bitwise_and_(_MASK)


def gumbel(words: tuple[Tensor, ...]) -> Tensor:
    """Words, int64 [...] each in [0, 2^32) -> float32 noise [..., number of words]. The words are overwritten."""
    noise = torch.empty((*words[0].shape, len(words)), dtype=torch.float32, device=words[0].device)
    for i, word in enumerate(words):
        noise[..., i] = word.mul_(2).add_(1)  # exact, so the one rounding is that to float32
    return noise.mul_(-(2.0**-33)).log1p_().neg_().log_().neg_().clamp_(min=NOISE_FLOOR)


def gumbel_rows(seeds: Tensor, indexes: Tensor, choices: Tensor, vocab_size: int, use: int = SAMPLE) -> Tensor:
    """Noise of every token. seeds: int64 [r] (the bits of the 64-bit seed); indexes (of the output token), choices:
    int64 [r]. Returns float32 [r, vocab_size]."""
    num_rows, num_counters = seeds.shape[0], (vocab_size + 3) // 4
    noise = torch.empty((num_rows, num_counters, 4), dtype=torch.float32, device=seeds.device)
    counters = torch.arange(num_counters, dtype=torch.int64, device=seeds.device)
    last = torch.full_like(choices, use)[:, None]
    key = ((seeds & _MASK)[:, None], ((seeds >> 32) & _MASK)[:, None])
    at_once = num_counters if seeds.is_cuda else max(_CACHED_COUNTERS // num_rows, 1)
    for start in range(0, num_counters, at_once):
        counter = (counters[None, start : start + at_once], indexes[:, None], choices[:, None], last)
        noise[:, start : start + at_once] = gumbel(philox4x32(counter, key))
    return noise.view(num_rows, -1)[:, :vocab_size]


def gumbel_tokens(seeds: Tensor, indexes: Tensor, choices: Tensor, token_ids: Tensor) -> Tensor:
    """Noise of single tokens: int64 tensors, all [m]. Returns float32 [m], equal to `gumbel_rows` at these ids."""
    num_tokens = token_ids.shape[0]
    noise = torch.empty(num_tokens, dtype=torch.float32, device=token_ids.device)
    at_once = max(num_tokens, 1) if token_ids.is_cuda else _CACHED_COUNTERS
    for start in range(0, num_tokens, at_once):
        part = slice(start, start + at_once)
        words = _words_of_tokens(seeds[part], indexes[part], choices[part], token_ids[part], SAMPLE)
        noise[part] = gumbel((words,))[:, 0]
    return noise


def uniform_tokens(seeds: Tensor, indexes: Tensor, choices: Tensor, token_ids: Tensor, use: int) -> Tensor:
    """u of single tokens, float32 [m] in (0, 1]: int64 tensors, all [m]."""
    return _words_of_tokens(seeds, indexes, choices, token_ids, use).mul_(2).add_(1).float().mul_(2.0**-33)


def _words_of_tokens(seeds: Tensor, indexes: Tensor, choices: Tensor, token_ids: Tensor, use: int) -> Tensor:
    """int64 [m] in [0, 2^32)"""
    counter = (token_ids // 4, indexes, choices, torch.full_like(choices, use))
    words = philox4x32(counter, (seeds & _MASK, (seeds >> 32) & _MASK))
    return torch.stack(words).gather(0, (token_ids % 4)[None])[0]
