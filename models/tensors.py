"""A checkpoint's tensors under their canonical names (those of Hugging Face), not yet read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..checkpoints.sharding import Share
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
    read_columns: Callable[[int, int, int, int], Tensor] | None = None
    """(first, last + 1, first column, last + 1) -> this part of the rows; None: rows are read whole."""

    def share(self, shares: tuple[Share, ...]) -> StoredTensor:
        """The part of a rank, by axis, as a tensor of its own; nothing but that part is read."""
        if all(share == (0, length, length) for share, length in zip(shares, self.shape, strict=True)):
            return self
        rows, *columns = shares
        num_elements = prod(share.num_real for share in shares)
        return StoredTensor(
            self.name,
            tuple(share.size for share in shares),
            self.num_bytes * num_elements // max(prod(self.shape), 1),
            self.row_group,
            lambda first, last: _filled(self, rows, columns, first, last),
        )

    def pieces(self) -> Iterator[tuple[int, Tensor]]:
        """The whole tensor as (first row, rows), a few MiB at a time."""
        return ((first, self.read_rows(first, last)) for first, last in self._ranges())

    def stored_pieces(self) -> Iterator[tuple[int, RowsOfPiece]]:
        """As `pieces`; rows as they are stored where they can be read so."""
        read = self.read_rows if self.read_stored is None else self.read_stored
        return ((first, read(first, last)) for first, last in self._ranges())

    def read_part(self, first: int, last: int, columns: Share) -> Tensor:
        """Rows `first` to `last` - 1 of these columns."""
        if self.read_columns is not None:
            return self.read_columns(first, last, columns.first, columns.last)
        return self.read_rows(first, last)[:, columns.first : columns.last]

    def _ranges(self) -> Iterator[tuple[int, int]]:
        num_rows = self.shape[0]
        row_elements = prod(self.shape[1:])
        step = max(_PIECE_ELEMENTS // max(row_elements, 1) // self.row_group, 1) * self.row_group
        for first in range(0, num_rows, step):
            yield first, min(first + step, num_rows)


def _filled(tensor: StoredTensor, rows: Share, columns: list[Share], first: int, last: int) -> Tensor:
    """Rows of a rank's part, with the zeros behind its rows and columns."""
    import torch
    import torch.nn.functional as F

    start, stop = (min(rows.first + row, rows.last) for row in (first, last))
    if start == stop:
        return torch.zeros(last - first, *(share.size for share in columns))
    whole = not columns or columns[0].num_real == tensor.shape[1]
    part = tensor.read_rows(start, stop) if whole else tensor.read_part(start, stop, columns[0])
    num_missing = last - first - (stop - start)
    if columns:
        return F.pad(part, (0, columns[0].size - columns[0].num_real, 0, num_missing))
    return F.pad(part, (0, num_missing))
