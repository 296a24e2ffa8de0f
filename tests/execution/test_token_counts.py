"""Counts of tokens against `collections.Counter`, whatever way the output grows and shrinks."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from callboard.execution.token_counts import TokenCounts

tokens = st.lists(st.integers(0, 12), max_size=60)


@given(prompt=tokens, output=tokens, lengths=st.lists(st.integers(0, 60), min_size=1, max_size=12))
def test_equal_to_a_counter(prompt, output, lengths):
    counts, all_output = TokenCounts(np.array(prompt, np.int32)), np.array(output, np.int32)
    for length in lengths:
        counts.count(all_output[:length])
        expected = dict.fromkeys(prompt, 0) | Counter(output[:length])
        assert dict(zip(counts.token_ids.tolist(), counts.counts.tolist(), strict=True)) == expected
        assert len(set(counts.token_ids.tolist())) == counts.token_ids.size
