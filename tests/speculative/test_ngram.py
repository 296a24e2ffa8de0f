"""Prompt lookup against a search in plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.speculative.ngram import NgramOptions, NgramProposer
from callboard.tests.speculative.token_rows import TokenRows, repeating_tokens

PROPOSERS = {(low, high): NgramProposer(NgramOptions(low, high), 4) for low in (1, 2, 3) for high in range(low, 6)}


def looked_up(tokens: list[int], low: int, high: int, max_drafts: int) -> list[int]:
    """The last n-gram, the longest first; its occurrences, the latest first; then token by token."""
    for size in range(high, low - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                text = list(tokens)
                for offset in range(max_drafts):
                    text.append(text[start + size + offset])
                return text[len(tokens) :]
    return []


@given(st.lists(st.tuples(repeating_tokens(64), st.integers(0, 9)), min_size=1, max_size=4), st.data())
def test_drafts_are_those_of_a_search(rows, data):
    low, high = data.draw(st.sampled_from(sorted(PROPOSERS)))
    batch = TokenRows(4)
    for row, (tokens, _) in enumerate(rows):
        batch.put(row, tokens)
    order = data.draw(st.permutations(range(len(rows))))
    drafts = batch.propose(PROPOSERS[low, high], order, [rows[row][1] for row in order])
    assert drafts == [looked_up(*(rows[row][0], low, high, rows[row][1])) for row in order]


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], [4, 9, 1, 2, 4]),  # the latest of two, and then its own continuation
        ([5, 1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3], [9, 7, 2, 3, 8]),  # the longer one, though it is older
        ([7, 7, 7], [7, 7, 7, 7, 7]),
        ([4, 1, 2, 1, 2, 1], [2, 1, 2, 1, 2]),
        ([1, 2, 3, 4, 5], []),
        ([1, 2, 3, 1], []),  # one token is no bigram
        ([], []),
        ([1], []),
    ],
)
def test_what_is_drafted(tokens, drafts):
    batch = TokenRows(1)
    batch.put(0, tokens)
    assert batch.propose(NgramProposer(NgramOptions(min_ngram=2, max_ngram=4), 1), [0], [5]) == [drafts]


def test_no_rows_and_no_room():
    proposer, batch = NgramProposer(NgramOptions(), 2), TokenRows(2)
    assert batch.propose(proposer, [], []) == []
    batch.put(1, [3, 4, 3, 4])
    assert batch.propose(proposer, [1], [0]) == [[]]
    assert batch.propose(proposer, [1, 0], [3, 3]) == [[3, 4, 3], []]


def test_many_drafts_and_another_array():
    proposer = NgramProposer(NgramOptions(), 1)
    for width in (65, 2001):
        batch = TokenRows(1, width)
        batch.put(0, [1, 2, 3, 1, 2])
        assert batch.propose(proposer, [0], [500]) == [([3, 1, 2] * 86)[:256]]


def test_what_was_proposed_stays_what_it_is():
    proposer, batch = NgramProposer(NgramOptions(), 1), TokenRows(1)
    batch.put(0, [1, 2, 1, 2])
    array = np.array([0], np.int32)
    first = proposer.propose(array, batch.token_ids, batch.num_known, np.array([2], np.int32))
    batch.put(0, [8, 2, 8, 2])
    proposer.propose(array, batch.token_ids, batch.num_known, np.array([2], np.int32))
    assert (first.counts.tolist(), first.token_ids.tolist()) == ([2], [1, 2])


def test_limits_that_contradict_each_other():
    with pytest.raises(ConfigError, match="min_ngram is 5, max_ngram 4"):
        NgramProposer(NgramOptions(min_ngram=5, max_ngram=4), 1)
