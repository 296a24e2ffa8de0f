"""A checkpoint's tensors under their canonical names (those of Hugging Face), not yet read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from ..kernels.cpu.quantized_rows import QuantizedRows

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
    read_quantized: Callable[[int, int], QuantizedRows] | None = None
    """The same rows as they are stored, if that is in groups of 32 with a scale and a minimum."""

    def pieces(self, *, quantized: bool = False) -> Iterator[tuple[int, Tensor | QuantizedRows]]:
        """The whole tensor as (first row, rows), a few MiB at a time; as it is stored if `quantized` and it can be."""
        read = self.read_quantized if quantized and self.read_quantized is not None else self.read_rows
        num_rows = self.shape[0]
        row_elements = 1
        for size in self.shape[1:]:
            row_elements *= size
        step = max(_PIECE_ELEMENTS // max(row_elements, 1) // self.row_group, 1) * self.row_group
        for first in range(0, num_rows, step):
            yield first, read(first, min(first + step, num_rows))
