"""The coupled rule against loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from callboard.speculative.acceptance import count_accepted, first_places

ROWS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6), max_size=6)
"""(drawn, draft) of each place of each row; the last draft of a row stands for nothing."""


@given(rows=ROWS)
def test_drafts_count_while_they_are_what_was_drawn(rows: list[list[tuple[int, int]]]) -> None:
    taken = []
    for row in rows:
        num_accepted = 0
        while num_accepted < len(row) - 1 and row[num_accepted][0] == row[num_accepted][1]:
            num_accepted += 1
        taken.append(num_accepted + 1)
    flat = np.array([pair for row in rows for pair in row], np.int32).reshape(-1, 2)
    counts = np.array([len(row) for row in rows], np.int32)
    found = count_accepted(flat[:, 0], flat[:, 1], counts)
    assert (found.tolist(), found.dtype) == (taken, np.int32)
    is_first = [place < count for row, count in zip(rows, taken, strict=True) for place in range(len(row))]
    assert first_places(found, counts).tolist() == is_first
