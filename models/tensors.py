"""A checkpoint's tensors under their canonical names (those of Hugging Face), not yet read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .parts import RowsOfPiece

if TYPE_CHECKING:
    from torch import Tensor

_PIECE_ELEMENTS = 1 << 20
"""Elements read at a time: small enough for the cache, large enough to hide the call."""


class StoredTensor(NamedTuple):
    """One tensor in a file."""

    name: str
    """Canonical, e.g. `model.layers.0.self_attn.q_proj.weight`."""
    shape: tuple[int, ...]
    num_bytes: int
    """In the file."""
    row_group: int
    """Rows that must be read together (the first is a multiple of it)."""
    read_rows: Callable[[int, int], Tensor]
    """(first, last + 1) -> a floating-point CPU tensor of these rows; valid until the next call."""
    read_stored: Callable[[int, int], RowsOfPiece] | None = None
    """The same rows without torch: as they are stored, if that is in groups of 32 with a scale and a minimum, or else
    float32."""

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """The whole tensor as (first row, rows), a few MiB at a time."""
        return ((first, self.read_rows(first, last)) for first, last in self._ranges())

    def stored_pieces(self) -> Iterator[tuple[int, RowsOfPiece]]:
        """As `pieces`; rows as they are stored where they can be read so."""
        read = self.read_rows if self.read_stored is None else self.read_stored
        return ((first, read(first, last)) for first, last in self._ranges())

    def _ranges(self) -> Iterator[tuple[int, int]]:
        num_rows = self.shape[0]
        row_elements = 1
        for size in self.shape[1:]:
            row_elements *= size
        step = max(_PIECE_ELEMENTS // max(row_elements, 1) // self.row_group, 1) * self.row_group
        for first in range(0, num_rows, step):
            yield first, min(first + step, num_rows)
