"""The noise of `kernels.philox` in a kernel: words bit for bit, and their logarithms as torch has them on a GPU.

Tolerance: none for words; noise equals torch's on the same GPU (both call libdevice), in the interpreter it is within
2 ulp of torch's on the CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from ..noise import M0, M1, NOISE_FLOOR, ROUNDS, SAMPLE, W0, W1
from .launch import IS_INTERPRETED

_M0, _M1, _W0, _W1 = tl.constexpr(M0), tl.constexpr(M1), tl.constexpr(W0), tl.constexpr(W1)
_ROUNDS, _FLOOR = tl.constexpr(ROUNDS), tl.constexpr(NOISE_FLOOR)
_SAMPLE = tl.constexpr(SAMPLE)
_INTERPRETED = tl.constexpr(IS_INTERPRETED)
MAX_NOISE = tl.constexpr(22.875)
"""No noise is larger: that of word 0 is 33 log 2 = 22.8738."""


@triton.jit
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Four words from four counter words and two key words; uint32."""
    for _ in tl.static_range(_ROUNDS):
        p0_high, p1_high = tl.umulhi(c0, tl.cast(_M0, tl.uint32)), tl.umulhi(c2, tl.cast(_M1, tl.uint32))
        p0_low, p1_low = c0 * tl.cast(_M0, tl.uint32), c2 * tl.cast(_M1, tl.uint32)
        c0, c2 = p1_high ^ c1 ^ k0, p0_high ^ c3 ^ k1
        c1, c3 = p1_low, p0_low
        k0, k1 = k0 + tl.cast(_W0, tl.uint32), k1 + tl.cast(_W1, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def uniform(words):
    """uint32 [...] -> float32 [...]: (word + 0.5) / 2^32"""
    # 2 word + 1 is exact in 64 bits, so that the one rounding is that to float32.
    return (words.to(tl.int64) * 2 + 1).to(tl.float32) * 1.1641532182693481e-10  # 2^-33


@triton.jit
def gumbel(words):
    """uint32 [...] -> float32 [...]: -log(-log1p(-(word + 0.5) / 2^32))"""
    u = uniform(words)
    if _INTERPRETED:
        # There is no log1p: log(1 - u) in float64, put right by how far 1 - u was rounded (u >= 2^-33, so it is not 1).
        wide = u.to(tl.float64)
        rest = 1.0 - wide
        noise = -tl.log((tl.log(rest) * (wide / (rest - 1.0))).to(tl.float32))
    else:
        noise = -libdevice.log(-libdevice.log1p(-u))
    return tl.maximum(noise, _FLOOR)


@triton.jit
def gumbel_block(first, index, choice, key_low, key_high, BLOCK: tl.constexpr, USE: tl.constexpr = _SAMPLE):
    """float32 [BLOCK]: noise of the tokens first .. first + BLOCK - 1; `first` is a multiple of 4."""
    counters = (first // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    c1 = tl.zeros_like(counters) + index
    c2 = tl.zeros_like(counters) + choice
    w0, w1, w2, w3 = philox4x32(counters, c1, c2, tl.zeros_like(counters) + USE, key_low, key_high)
    return gumbel(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@triton.jit
def gumbel_token(token_id, index, choice, key_low, key_high):
    """Noise of one token."""
    return gumbel(token_word(token_id, index, choice, key_low, key_high, _SAMPLE))


@triton.jit
def token_word(token_id, index, choice, key_low, key_high, USE: tl.constexpr):
    """uint32: the word of one token."""
    counter = (token_id // 4).to(tl.uint32)
    zero = tl.zeros_like(counter)
    w0, w1, w2, w3 = philox4x32(counter, zero + index, zero + choice, zero + USE, key_low, key_high)
    place = token_id % 4
    return tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))
