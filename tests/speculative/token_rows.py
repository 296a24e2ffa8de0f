"""A batch's array of tokens, and random rows in which tokens repeat."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from callboard.speculative.proposer import ProposedDrafts, Proposer

WIDTH = 65
"""max_model_len is 64."""


def repeating_tokens(max_size: int) -> st.SearchStrategy[list[int]]:
    """Of a small alphabet, and patterns that repeat."""
    token = st.sampled_from([0, 1, 2, 60_000])
    noise = st.lists(token, max_size=max_size)
    pattern = st.tuples(st.lists(token, min_size=1, max_size=4), st.integers(1, 6))
    return st.lists(st.one_of(noise, pattern.map(lambda found: found[0] * found[1])), max_size=4).map(
        lambda parts: [token for part in parts for token in part][:max_size]
    )


class TokenRows:
    """Rows of a persistent batch: what is not known of a row is noise."""

    def __init__(self, max_num_seqs: int, width: int = WIDTH) -> None:
        self.token_ids = np.random.default_rng(3).integers(0, 3, (max_num_seqs, width), np.int32)
        self.num_known = np.zeros(max_num_seqs, np.int32)

    def put(self, row: int, tokens: Sequence[int]) -> None:
        """Behind what the row has; what is too much is left out."""
        known = int(self.num_known[row])
        fitting = list(tokens)[: self.token_ids.shape[1] - 1 - known]
        self.token_ids[row, known : known + len(fitting)] = fitting
        self.num_known[row] += len(fitting)

    def clear(self, row: int) -> None:
        self.num_known[row] = 0

    def known(self, row: int) -> list[int]:
        return self.token_ids[row, : self.num_known[row]].tolist()

    def propose(self, proposer: Proposer, rows: Sequence[int], max_drafts: Sequence[int]) -> list[list[int]]:
        """Drafts row by row. The batch's own arrays are as they were."""
        before = self.token_ids.copy(), self.num_known.copy()
        found = proposer.propose(
            np.array(rows, np.int32), self.token_ids, self.num_known, np.array(max_drafts, np.int32)
        )
        np.testing.assert_array_equal(self.token_ids, before[0])
        np.testing.assert_array_equal(self.num_known, before[1])
        return split_drafts(found, max_drafts)


def split_drafts(found: ProposedDrafts, max_drafts: Sequence[int]) -> list[list[int]]:
    assert (found.counts.dtype, found.token_ids.dtype, found.probs) == (np.int32, np.int32, None)
    counts = found.counts.tolist()
    assert len(counts) == len(max_drafts) and all(0 <= n <= most for n, most in zip(counts, max_drafts, strict=True))
    ends = np.cumsum([0, *counts]).tolist()
    assert found.token_ids.size == ends[-1]
    return [found.token_ids[start:end].tolist() for start, end in pairwise(ends)]
