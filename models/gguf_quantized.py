"""Quantized GGUF blocks that have a scale and a minimum for each 32 weights, as they are: no weight is rounded.

Formats as in `gguf_dequantize`. Q4_K's scales are products (float16 times 6 bits) that are rounded to float16 here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.gguf_types import BLOCKS
from ..kernels.cpu.entries import split_nibbles
from ..kernels.cpu.quantized_rows import QuantizedRows
from .gguf_dequantize import fifth_bits, six_bit_scales

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]
Parts = tuple[Bytes, Halves, Halves]
"""q, d, m of blocks: [num_blocks, elements], [num_blocks, elements / 32] twice."""


def has_quantized(type_name: str) -> bool:
    """Whether a type is of this kind."""
    return type_name in _READERS


def read_quantized(raw: Bytes, type_name: str) -> QuantizedRows:
    """Rows of whole blocks: uint8 [num_rows, row bytes]."""
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged file may state infinite scales
        q, d, m = _READERS[type_name](raw.reshape(-1, BLOCKS[type_name][1]))
    num_rows = len(raw)
    return QuantizedRows(q.reshape(num_rows, -1), d.reshape(num_rows, -1), m.reshape(num_rows, -1))


def _half(blocks: Bytes, at: int) -> Halves:
    return np.ascontiguousarray(blocks[:, at : at + 2].view(np.float16))


def _nibbles(blocks: Bytes, first: int, group: int) -> Bytes:
    """From byte `first` of each block on, as `gguf_dequantize.nibbles`, in one line."""
    q = np.empty((len(blocks), 2 * (blocks.shape[1] - first)), np.uint8)
    split_nibbles(blocks, first, group, q)
    return q


def _q4_0(blocks: Bytes) -> Parts:
    d = _half(blocks, 0)
    return _nibbles(blocks, 2, 16), d, d * np.float16(-8)


def _q4_1(blocks: Bytes) -> Parts:
    return _nibbles(blocks, 4, 16), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    d = _half(blocks, 0)
    return _nibbles(blocks, 6, 16) | fifth_bits(blocks[:, 2:6]), d, d * np.float16(-16)


def _q5_1(blocks: Bytes) -> Parts:
    q = _nibbles(blocks, 8, 16) | fifth_bits(blocks[:, 4:8])
    return q, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    d = _half(blocks, 0)
    return blocks[:, 2:] + np.uint8(128), d, d * np.float16(-128)


def _q4_k(blocks: Bytes) -> Parts:
    s, z = six_bit_scales(blocks[:, 4:16])
    d = _half(blocks, 0).astype(np.float32) * s
    m = _half(blocks, 2).astype(np.float32) * z
    return _nibbles(blocks, 16, 32), d.astype(np.float16), (-m).astype(np.float16)


_READERS: dict[str, Callable[[Bytes], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
}
