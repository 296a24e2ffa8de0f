"""Rows of a matrix in groups of 32 weights with a scale and a minimum, as they come out of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.weight_formats import GROUP_COLUMNS, PANEL_ROWS

GROUP = GROUP_COLUMNS
"""Inputs that share a scale."""
PANEL = PANEL_ROWS
"""Outputs of a panel."""

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """weight = d q + m; not packed yet."""

    q: NDArray[np.uint8]
    """[num_rows, columns]"""
    d: NDArray[np.float16]
    """[num_rows, columns / 32]"""
    m: NDArray[np.float16]
    """[num_rows, columns / 32]"""

    def __len__(self) -> int:
        return len(self.q)

    def __getitem__(self, rows: slice) -> QuantizedRows:
        return QuantizedRows(self.q[rows], self.d[rows], self.m[rows])

    def dequantize(self) -> Float32s:
        """float32 [num_rows, columns]"""
        num_rows, columns = self.q.shape
        q = self.q.reshape(num_rows, -1, GROUP)
        weights = q * self.d[..., None].astype(np.float32) + self.m[..., None].astype(np.float32)
        return weights.reshape(num_rows, columns)
