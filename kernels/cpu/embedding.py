"""Rows of a packed matrix, back as numbers: the embeddings of tokens."""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .floats import bytes_at, floats_at, widen, widen_half, words_at
from .quantized_rows import GROUP
from .step_arguments import BITS, INPUTS, MINIMUMS, SCALES, VALUES
from .tiles import PANEL

_ZERO = np.float32(0.0)


@compiled
def read_row(matrix, row, scale, out):
    """out [in_features] = scale times row `row` of a matrix, float32; matrix: int64 [8] as in `linear`."""
    bits, size = matrix[BITS], matrix[INPUTS]
    panel, place = row // PANEL, row % PANEL
    if bits == 32:
        floats = floats_at(matrix[VALUES] + panel * PANEL * size * 4, PANEL * size)
        for i in range(size):
            out[i] = floats[i * PANEL + place] * scale
        return
    if bits == 16:
        words = words_at(matrix[VALUES] + panel * PANEL * size * 2, PANEL * size)
        for i in range(size):
            out[i] = widen(words[i * PANEL + place]) * scale
        return
    num_groups = size // GROUP
    values = bytes_at(matrix[VALUES] + panel * PANEL * size * bits // 8, PANEL * size * bits // 8)
    ds = words_at(matrix[SCALES] + panel * num_groups * PANEL * 2, num_groups * PANEL)
    ms = words_at(matrix[MINIMUMS] + panel * num_groups * PANEL * 2, num_groups * PANEL)
    for g in range(num_groups):
        d, m = widen_half(ds[g * PANEL + place]) * scale, widen_half(ms[g * PANEL + place]) * scale
        for j in range(GROUP):
            i = g * GROUP + j
            if bits == 8:
                q = np.int32(values[(i // 4) * 4 * PANEL + 4 * place + i % 4])
            else:
                pair = np.int32(values[(i // 8) * 4 * PANEL + 4 * place + i % 4])
                q = pair & np.int32(15) if i % 8 < 4 else pair >> np.int32(4)
            out[i] = d * np.float32(q) + m
