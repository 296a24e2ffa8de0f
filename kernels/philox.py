"""Philox4x32-10 and the Gumbel noise made from it: the only source of randomness in sampling.

    word(seed, token, index, choice) = philox4x32_10(key = seed, counter = (token // 4, index, choice, 0))[token % 4]
    u = (word + 0.5) / 2^32,  noise = -log(-log1p(-u)), float32

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, and the known-answer
vectors of its reference implementation. A word is held in an int64, 0 <= word < 2^32, since torch has no full uint32
arithmetic: a 32 x 32 bit product may wrap into the sign bit, and the masks after each shift take that out again.

A u that rounds to 1 would give -inf; it becomes `NOISE_FLOOR`, so that such a token loses against every other candidate
but still wins where it is the only one.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOISE_FLOOR = -1e30
_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four words from four counter words and two key words: int64 tensors in [0, 2^32) that broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # In the first rounds most of these are one number a row; they grow to the full shape only where they must.
        p0, p1 = c0 * _M0, c2 * _M1
        c0 = ((p1 >> 32) & _MASK) ^ (c1 ^ k0)
        c2 = ((p0 >> 32) & _MASK) ^ (c3 ^ k1)
        c1, c3 = p1 & _MASK, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def gumbel(words: Tensor) -> Tensor:
    """int64 words in [0, 2^32) -> float32 noise of the same shape."""
    # The sum is exact in float64, so the one rounding is that of u to float32.
    u = words.to(torch.float64).add_(0.5).mul_(2.0**-32).to(torch.float32)
    return u.neg_().log1p_().neg_().log_().neg_().clamp_(min=NOISE_FLOOR)


def gumbel_rows(seeds: Tensor, indexes: Tensor, choices: Tensor, vocab_size: int) -> Tensor:
    """Noise of every token. seeds: int64 [r] (the bits of the 64-bit seed); indexes (of the output token), choices:
    int64 [r]. Returns float32 [r, vocab_size]."""
    counter0 = torch.arange((vocab_size + 3) // 4, dtype=torch.int64, device=seeds.device)[None, :]
    words = philox4x32(
        (counter0, indexes[:, None], choices[:, None], torch.zeros_like(choices)[:, None]),
        ((seeds & _MASK)[:, None], ((seeds >> 32) & _MASK)[:, None]),
    )
    return gumbel(torch.stack(words, dim=-1).view(seeds.shape[0], -1)[:, :vocab_size])


def gumbel_tokens(seeds: Tensor, indexes: Tensor, choices: Tensor, token_ids: Tensor) -> Tensor:
    """Noise of single tokens: int64 tensors, all [m]. Returns float32 [m], equal to `gumbel_rows` at these ids."""
    words = philox4x32(
        (token_ids // 4, indexes, choices, torch.zeros_like(choices)), (seeds & _MASK, (seeds >> 32) & _MASK)
    )
    return gumbel(torch.stack(words, dim=-1).gather(-1, (token_ids % 4)[:, None])[:, 0])
