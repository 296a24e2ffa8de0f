"""Matrices gathered in packed form, for the CPU's compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping

from ..kernels.cpu.packing import MatrixPacker, PackedMatrix
from ..kernels.cpu.quantized_rows import Float32s, QuantizedRows
from .parts import ArrayStack, RowsOfPiece, Sizes, as_float32s, first_rows


class PackedStack:
    """As one packed matrix."""

    def __init__(self, sizes: Sizes, bits: int) -> None:
        self.firsts, self.missing_rows = first_rows(sizes)
        self._sizes, self._bits = (self.missing_rows, next(iter(sizes.values()))[1]), bits
        self._packer: MatrixPacker | None = None

    def put(self, first_row: int, rows: RowsOfPiece) -> None:
        if self._packer is None:
            self._packer = MatrixPacker(self._bits, *self._sizes)
        self._packer.put(first_row, rows if isinstance(rows, QuantizedRows) else as_float32s(rows))
        self.missing_rows -= len(rows)

    def take(self) -> PackedMatrix:
        assert self._packer is not None and self.missing_rows == 0
        packed, self._packer = self._packer.take(), None
        return packed


class PackedForm:
    """The embedding is packed too, and a tied head is the same matrix."""

    def __init__(self, bits: Mapping[str, int]) -> None:
        """As `weight_formats.held_bits` has them."""
        self._bits = bits

    def matrix(self, sizes: Sizes) -> PackedStack:
        return PackedStack(sizes, self._bits[next(iter(sizes))])

    def bias(self, sizes: Sizes) -> ArrayStack:
        return ArrayStack(sizes)

    def hold_matrix(self, matrix: PackedMatrix, bias: Float32s | None = None) -> PackedMatrix:
        return matrix if bias is None else matrix.with_bias(bias)

    def hold_embedding(self, matrix: PackedMatrix) -> PackedMatrix:
        return matrix

    def tie_head(self, embedding: PackedMatrix) -> PackedMatrix:
        return embedding

    def hold_vector(self, norm: Float32s) -> Float32s:
        return norm
