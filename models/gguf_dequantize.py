"""Quantized GGUF blocks to float32, the same arithmetic in the same order as the reference: equal to the last bit.

A row is a sequence of blocks; a block holds its scales as float16 and its elements as small integers, packed. Formats:
ggml's `block_*` structs (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). Names in the formulas below:
d, m: float16 scale and minimum of a block; s, z: small integers that scale d and m for a group of elements; q: an
element's integer.

Each function takes uint8 [num_blocks, block bytes] and fills float32 [num_blocks, block elements].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.gguf_types import BLOCKS

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_CHUNK_ELEMENTS = 1 << 16
"""Elements at a time: the steps of one chunk find it in the L2 cache."""

_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""What the 4 bits of an IQ4 element stand for."""


def dequantize(raw: Bytes, type_name: str) -> Floats:
    """Rows of whole blocks of a type in DEQUANTIZERS: uint8 [num_rows, row bytes] -> float32 [num_rows, n]."""
    block_elements, block_bytes = BLOCKS[type_name]
    fill = DEQUANTIZERS[type_name]
    blocks = raw.reshape(-1, block_bytes)
    values = np.empty((len(blocks), block_elements), np.float32)
    step = _CHUNK_ELEMENTS // block_elements
    # A damaged file may state infinite or undefined scales: what follows from them is as undefined, and no warning.
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(blocks), step):
            fill(blocks[first : first + step], values[first : first + step])
    return values.reshape(len(raw), -1)


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 that begins at byte `at` of each block: float32 [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def nibbles(packed: Bytes, group: int) -> Bytes:
    """Of each `group` bytes the low nibbles, then the high ones: [n, num_bytes] -> [n, num_bytes / group, 2, group]."""
    words = np.ascontiguousarray(packed).view(np.uint64).reshape(len(packed), -1, group // 8)
    low_high = np.empty((*words.shape[:2], 2, group // 8), np.uint64)
    low_high[:, :, 0] = words & _LOW_NIBBLES
    low_high[:, :, 1] = words >> np.uint64(4) & _LOW_NIBBLES
    return low_high.view(np.uint8)


def _planes(packed: Bytes, group: int, bits: int, shift: int) -> Bytes:
    """Of each `group` bytes the lowest `bits` bits, then the next ..., each moved up by `shift`.

    [n, num_bytes] -> [n, num_bytes / group, 8 / bits, group].
    """
    packed = np.ascontiguousarray(packed)
    num_planes, mask = 8 // bits, (1 << bits) - 1
    planes = np.empty((len(packed), packed.shape[1] // group, num_planes, group), np.uint8)
    for plane in range(num_planes):
        planes[:, :, plane] = ((packed >> plane * bits) & mask).reshape(len(packed), -1, group)
    planes <<= shift
    return planes


def _multiply(values: Floats, factors: Floats) -> None:
    """In place; values: [n, groups, size], factors: [n, groups]."""
    values *= factors[:, :, None]


def _subtract(values: Floats, terms: Floats) -> None:
    """In place; values: [n, groups, size], terms: [n, groups]."""
    values -= terms[:, :, None]


def _q4_0(blocks: Bytes, out: Floats) -> None:
    """d (q - 8)"""
    np.subtract(nibbles(blocks[:, 2:], 16).reshape(out.shape), np.float32(8), out=out)
    out *= _halves(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    """d q + m"""
    np.copyto(out, nibbles(blocks[:, 4:], 16).reshape(out.shape))
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)


def fifth_bits(packed: Bytes) -> Bytes:
    """Bit i of the 32 as 16 or 0: uint8 [n, 4] -> uint8 [n, 32]."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    """d (q - 16); the fifth bits of all elements stand before the nibbles."""
    q = nibbles(blocks[:, 6:], 16).reshape(out.shape)
    q |= fifth_bits(blocks[:, 2:6])
    np.subtract(q, np.float32(16), out=out)
    out *= _halves(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    """d q + m"""
    q = nibbles(blocks[:, 8:], 16).reshape(out.shape)
    q |= fifth_bits(blocks[:, 4:8])
    np.copyto(out, q)
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    """d q"""
    np.copyto(out, blocks[:, 2:].view(np.int8))
    out *= _halves(blocks, 0)


def _q8_k(blocks: Bytes, out: Floats) -> None:
    """d q with d in float32; the sums that end the block serve products of quantized vectors only."""
    np.copyto(out, blocks[:, 4:260].view(np.int8))
    out *= np.ascontiguousarray(blocks[:, :4]).view(np.float32)


def six_bit_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """(s, z) of the 8 groups of a Q4_K or Q5_K block: uint8 [n, 12] -> two uint8 [n, 8].

    Bytes 0-3: s of groups 0-3; 4-7: z of groups 0-3; 8-11: nibbles s | z << 4 of groups 4-7, whose upper two bits are
    those that bytes 0-7 have left.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    s = np.concatenate((first & 63, (third & 15) | ((first >> 2) & 48)), axis=1)
    z = np.concatenate((second & 63, (third >> 4) | ((second >> 2) & 48)), axis=1)
    return s, z


def _scale_groups(blocks: Bytes, groups: Floats) -> None:
    """d s q - m z in place; groups: q as float32 [n, 8, 32]; Q4_K and Q5_K have the same first 16 bytes."""
    s, z = six_bit_scales(blocks[:, 4:16])
    _multiply(groups, _halves(blocks, 0) * s.astype(np.float32))
    _subtract(groups, _halves(blocks, 2) * z.astype(np.float32))


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """d s q - m z in groups of 32"""
    np.copyto(out, nibbles(blocks[:, 16:], 32).reshape(out.shape))
    _scale_groups(blocks, out.reshape(-1, 8, 32))


def _q5_k(blocks: Bytes, out: Floats) -> None:
    """d s q - m z in groups of 32; bit g of byte i is the fifth bit of element i of group g."""
    q = nibbles(blocks[:, 48:], 32).reshape(out.shape)
    q |= _planes(blocks[:, 16:48], 32, bits=1, shift=4).reshape(out.shape)
    np.copyto(out, q)
    _scale_groups(blocks, out.reshape(-1, 8, 32))


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """d s (q - 32) in groups of 16, s signed"""
    q = nibbles(blocks[:, :128], 64).reshape(out.shape)
    q |= _planes(blocks[:, 128:192], 32, bits=2, shift=4).reshape(out.shape)
    np.subtract(q, np.float32(32), out=out)
    s = blocks[:, 192:208].view(np.int8).astype(np.float32)
    _multiply(out.reshape(-1, 16, 16), _halves(blocks, 208) * s)


def _q2_k(blocks: Bytes, out: Floats) -> None:
    """d s q - m z in groups of 16, s and z of 4 bits"""
    np.copyto(out, _planes(blocks[:, 16:80], 32, bits=2, shift=0).reshape(out.shape))
    s, z = (blocks[:, :16] & 15).astype(np.float32), (blocks[:, :16] >> 4).astype(np.float32)
    groups = out.reshape(-1, 16, 16)
    _multiply(groups, _halves(blocks, 80) * s)
    _subtract(groups, _halves(blocks, 82) * z)


def _q3_k(blocks: Bytes, out: Floats) -> None:
    """d (s - 32) (q - 4) in groups of 16; the third bits of all elements come first, s has 6 bits."""
    q = _planes(blocks[:, 32:96], 32, bits=2, shift=0).reshape(out.shape)
    q |= _planes(blocks[:, :32], 32, bits=1, shift=2).reshape(out.shape)
    np.subtract(q, np.float32(4), out=out)
    s = nibbles(blocks[:, 96:104], 8).reshape(-1, 16) | _planes(blocks[:, 104:108], 4, bits=2, shift=4).reshape(-1, 16)
    _multiply(out.reshape(-1, 16, 16), _halves(blocks, 108) * (s.astype(np.float32) - np.float32(32)))


def _iq4_nl(blocks: Bytes, out: Floats) -> None:
    """d v[q]"""
    np.take(_IQ4_VALUES, nibbles(blocks[:, 2:], 16).reshape(out.shape), out=out, mode="clip")
    out *= _halves(blocks, 0)


def _iq4_xs(blocks: Bytes, out: Floats) -> None:
    """d (s - 32) v[q] in groups of 32; s: nibbles, and two bits of each in the 16 bits before."""
    np.take(_IQ4_VALUES, nibbles(blocks[:, 8:], 16).reshape(out.shape), out=out, mode="clip")
    upper = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    lower = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=2).reshape(-1, 8)
    s = (lower | upper.astype(np.uint8) << 4).astype(np.float32) - np.float32(32)
    _multiply(out.reshape(-1, 8, 32), _halves(blocks, 0) * s)


DEQUANTIZERS: dict[str, Callable[[Bytes, Floats], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_K": _q8_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
"""Type name -> the function that fills; all quantized types of `checkpoints.gguf_types.TENSOR_TYPES`."""
