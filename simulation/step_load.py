"""What one step has to compute, as the numbers that its time depends on."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class StepLoad(NamedTuple):
    """Sums over the rows of a step; a decode row is one that computes a single position."""

    num_decode_rows: int
    num_prefill_rows: int
    num_prefill_tokens: int
    """Positions of the prefill rows."""
    context_tokens: int
    """Positions that the decode rows look at, their own included: for each one its keys and values are read."""
    prefill_context_tokens: int
    """The same of the prefill rows, each position once a row."""
    prefill_pairs: int
    """Of the prefill rows, (position computed, position looked at): what attention's arithmetic grows with."""
    num_samples: int
    """Rows that yield a token."""

    @property
    def num_rows(self) -> int:
        return self.num_decode_rows + self.num_prefill_rows

    @property
    def num_tokens(self) -> int:
        """Positions computed."""
        return self.num_decode_rows + self.num_prefill_tokens


class StepTimes(Protocol):
    """How long a device takes for a step."""

    def step_ns(self, load: StepLoad) -> int:
        """Nanoseconds, at least 1."""
        ...


def decode_load(starts: npt.NDArray[np.int32]) -> StepLoad:
    """Of a step in which each row computes the position `starts[i]` and yields a token."""
    num_rows = len(starts)
    return StepLoad(num_rows, 0, 0, int(np.add.reduce(starts)) + num_rows, 0, 0, num_rows)


def load_of(starts: npt.NDArray[np.int32], num_tokens: npt.NDArray[np.int32], num_samples: int) -> StepLoad:
    """Of any step: row i computes `num_tokens[i]` positions from `starts[i]` on."""
    is_prefill = num_tokens > 1
    counts, begins = num_tokens[is_prefill].astype(np.int64), starts[is_prefill].astype(np.int64)
    num_prefill_rows = len(counts)
    num_decode_rows = len(starts) - num_prefill_rows
    return StepLoad(
        num_decode_rows=num_decode_rows,
        num_prefill_rows=num_prefill_rows,
        num_prefill_tokens=int(counts.sum()),
        context_tokens=int(starts.sum() - begins.sum()) + num_decode_rows,
        prefill_context_tokens=int((begins + counts).sum()),
        prefill_pairs=int((counts * begins + counts * (counts + 1) // 2).sum()),
        num_samples=num_samples,
    )
