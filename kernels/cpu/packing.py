"""Matrices in the form that the tiles read (`tiles` says how the bytes lie).

Integer formats: weight = d q + m, with a scale d and a minimum m (float16) for each 32 inputs of an output, and q of 4
or 8 bits. GGUF's Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (and what else has groups of 32) are of this kind as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .entries import interleave, interleave_scales, quantize_eight, quantize_four
from .quantized_rows import GROUP, PANEL, Float32s, QuantizedRows

UInt8s = NDArray[np.uint8]
Halves = NDArray[np.float16]

FORMATS = {4: "int4", 8: "int8", 16: "bfloat16", 32: "float32"}
"""Bits of a weight -> name."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """[out_features, in_features] in panels of 16 outputs; the last panel is filled up with zeros."""

    bits: int
    out_features: int
    in_features: int
    values: UInt8s
    """All panels' bytes, one panel behind the other."""
    d: Halves
    """[num_panels, in_features / 32, 16]; empty unless `bits` is 4 or 8."""
    m: Halves
    """As d."""
    bias: Float32s
    """[16 num_panels], or empty."""

    @property
    def num_panels(self) -> int:
        return -(-self.out_features // PANEL)

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + self.d.nbytes + self.m.nbytes + self.bias.nbytes

    def with_bias(self, bias: Float32s) -> PackedMatrix:
        """bias: float32 [out_features]"""
        padded = np.zeros(self.num_panels * PANEL, np.float32)
        padded[: bias.size] = bias
        return replace(self, bias=padded)


class MatrixPacker:
    """Takes the rows of a matrix piece by piece, in any order, and packs each panel as soon as it is whole."""

    def __init__(self, bits: int, out_features: int, in_features: int) -> None:
        """Raises ValueError if the format cannot hold so many columns."""
        if not fits(bits, in_features):
            raise ValueError(f"{FORMATS[bits]} takes groups of {GROUP} columns, not {in_features} columns")
        self._bits, self._out_features, self._in_features = bits, out_features, in_features
        self._num_panels = -(-out_features // PANEL)
        self._values = aligned_bytes(self._num_panels * PANEL * in_features * bits // 8)
        groups = in_features // GROUP if bits <= 8 else 0
        self._d = np.zeros((self._num_panels, groups, PANEL), np.float16)
        self._m = np.zeros((self._num_panels, groups, PANEL), np.float16)
        self._open: dict[int, tuple[int, list[tuple[int, Float32s | QuantizedRows]]]] = {}

    def put(self, first_row: int, rows: Float32s | QuantizedRows) -> None:
        """float32 or quantized [n, in_features]: what is quantized, to no more bits than here, stays as it is."""
        num_rows = len(rows)
        done = 0
        while done < num_rows:
            panel, place = divmod(first_row + done, PANEL)
            count = min(PANEL - place, num_rows - done)
            if count == PANEL:  # all whole panels at once
                count = (num_rows - done) // PANEL * PANEL
                self._pack(panel, rows[done : done + count])
            else:
                self._collect(panel, place, rows[done : done + count], count)
            done += count

    def take(self) -> PackedMatrix:
        """The matrix, when all rows are in."""
        for panel, (_, parts) in list(self._open.items()):
            self._pack_parts(panel, parts)
        empty = np.zeros(0, np.float32)
        return PackedMatrix(self._bits, self._out_features, self._in_features, self._values, self._d, self._m, empty)

    def _collect(self, panel: int, place: int, rows: Float32s | QuantizedRows, count: int) -> None:
        missing, parts = self._open.pop(panel, (PANEL, []))
        copied = (
            QuantizedRows(rows.q.copy(), rows.d.copy(), rows.m.copy())
            if isinstance(rows, QuantizedRows)
            else rows.copy()
        )
        parts.append((place, copied))
        if missing == count:
            self._pack_parts(panel, parts)
        else:
            self._open[panel] = (missing - count, parts)

    def _pack_parts(self, panel: int, parts: list[tuple[int, Float32s | QuantizedRows]]) -> None:
        shape = (PANEL, self._in_features)
        if self._bits > 8:
            whole = np.zeros(shape, np.float32)
            for place, rows in parts:
                floats = rows.dequantize() if isinstance(rows, QuantizedRows) else rows
                whole[place : place + len(floats)] = floats
            self._pack(panel, whole)
            return
        groups = (PANEL, self._in_features // GROUP)
        quantized = QuantizedRows(np.zeros(shape, np.uint8), np.zeros(groups, np.float16), np.zeros(groups, np.float16))
        for place, rows in parts:
            rows = rows if isinstance(rows, QuantizedRows) else quantize(rows, self._bits)
            for target, source in ((quantized.q, rows.q), (quantized.d, rows.d), (quantized.m, rows.m)):
                target[place : place + len(rows)] = source
        self._pack(panel, quantized)

    def _pack(self, first_panel: int, rows: Float32s | QuantizedRows) -> None:
        """Whole panels."""
        if self._bits > 8:
            floats = rows.dequantize() if isinstance(rows, QuantizedRows) else rows
            stored = floats if self._bits == 32 else round_to_bfloat16(floats)
            panels = stored.reshape(-1, PANEL, self._in_features).transpose(0, 2, 1)
            held = self._values.view(stored.dtype).reshape(self._num_panels, self._in_features, PANEL)
            held[first_panel : first_panel + len(panels)] = panels
            return
        if not isinstance(rows, QuantizedRows):
            rows = quantize(rows, self._bits)
        num_panels = len(rows.q) // PANEL
        held = slice(first_panel, first_panel + num_panels)
        words = self._values.view(np.uint32).reshape(self._num_panels, -1, PANEL)
        interleave(np.ascontiguousarray(rows.q).view(np.uint32), words[held])
        for target, source in ((self._d, rows.d), (self._m, rows.m)):
            interleave_scales(source.view(np.uint16), target[held].view(np.uint16))


def fits(bits: int, in_features: int) -> bool:
    """Whether a format can hold rows of so many columns."""
    return bits > 8 or in_features % GROUP == 0


def quantize(weights: Float32s, bits: int) -> QuantizedRows:
    """float32 [n, columns] -> the nearest of its format: int4 spans each group from its minimum to its maximum, int8
    (q - 128 from -127 to 127) is even on both sides of zero."""
    num_rows, columns = weights.shape
    q = np.empty((num_rows, columns), np.uint8)
    d, m = (np.empty((num_rows, columns // GROUP), np.float16) for _ in range(2))
    (quantize_four if bits == 4 else quantize_eight)(weights, q, d.view(np.uint16), m.view(np.uint16))
    return QuantizedRows(q, d, m)


def round_to_bfloat16(values: Float32s) -> NDArray[np.uint16]:
    """Nearest, ties to even; finite values only."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def aligned_bytes(count: int) -> UInt8s:
    """Zeros, at an address that is a multiple of 64."""
    raw = np.zeros(count + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count]
