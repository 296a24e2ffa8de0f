"""Suffix decoding against the same in plain lists, over random lives of requests."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.speculative.suffix_tree import SuffixOptions, SuffixProposer
from callboard.tests.speculative.suffix_reference import ReferenceSuffix
from callboard.tests.speculative.token_rows import TokenRows, repeating_tokens

ROWS = 3
OPTIONS = st.builds(
    SuffixOptions,
    min_match=st.integers(1, 3),
    min_shared_match=st.integers(1, 3),
    max_match=st.sampled_from([3, 6, 24]),
    max_occurrences=st.sampled_from([1, 2, 5, 64]),
    spec_factor=st.sampled_from([0.5, 1.0, 2.5]),
    min_probability=st.sampled_from([0.0, 0.1, 0.3, 0.6]),
    max_cached_tokens=st.sampled_from([0, 1, 7, 40, 1000]),
)
KEYS = st.sampled_from([None, "a", "b"])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("follow"), st.integers(0, ROWS - 1), repeating_tokens(30), KEYS, st.integers(0, 20)),
        st.tuples(st.just("grow"), st.integers(0, ROWS - 1), repeating_tokens(9)),
        st.tuples(st.just("forget"), st.integers(0, ROWS - 1)),
    ),
    min_size=3,
    max_size=15,
)


class Both:
    """A proposer and its reference, through the same life."""

    def __init__(self, options: SuffixOptions, max_num_seqs: int = ROWS, width: int = 65) -> None:
        self.proposer = SuffixProposer(options, max_num_seqs, width - 1)
        self.reference = ReferenceSuffix(options)
        self.batch = TokenRows(max_num_seqs, width)

    def follow(self, row: int, tokens: list[int], key: str | None, num_output: int = 0) -> None:
        """A request whose last `num_output` tokens are its output already."""
        self.forget(row)
        self.batch.put(row, tokens)
        for proposer in (self.proposer, self.reference):
            proposer.follow(row, max(len(tokens) - num_output, 0), key)

    def forget(self, row: int) -> None:
        self.batch.clear(row)
        self.proposer.forget(np.array([row], np.int32))
        self.reference.forget(row)

    def propose(self, rows: list[int], max_drafts: list[int]) -> list[list[int]]:
        drafts = self.batch.propose(self.proposer, rows, max_drafts)
        of_lists = [(row, self.batch.known(row), most) for row, most in zip(rows, max_drafts, strict=True)]
        assert drafts == self.reference.propose(of_lists)
        self.proposer.check_integrity()
        return drafts


@pytest.mark.slow
@given(OPTIONS, EVENTS, st.integers(0, 2**32 - 1))
@settings(max_examples=250)
def test_drafts_are_those_of_plain_lists(options, events, seed):
    """After each event some of the rows are proposed for, in any order."""
    both, random = Both(options), np.random.default_rng(seed)
    for event in events:
        match event:
            case "follow", row, tokens, key, num_output:
                both.follow(row, tokens, key, num_output)
            case "grow", row, tokens:
                both.batch.put(row, tokens)
            case "forget", row:
                both.forget(row)
        rows = random.permutation(ROWS)[: random.integers(1, ROWS + 1)]
        both.propose(rows.tolist(), random.integers(0, 9, rows.size).tolist())


def test_a_long_row_and_a_small_alphabet():
    random = np.random.default_rng(5)
    both = Both(SuffixOptions(max_occurrences=8), 2, 1201)
    both.follow(0, [], "a")
    num_drafts = 0
    for _ in range(40):
        both.batch.put(0, random.integers(0, 4, 30).tolist())
        num_drafts += len(both.propose([0], [16])[0])
    assert num_drafts > 0


def test_what_is_most_frequent():
    both = Both(SuffixOptions(min_match=1, max_cached_tokens=0))
    both.follow(0, [1, 5, 1, 6, 1, 6, 1, 5, 1, 6, 1], None)
    assert both.propose([0], [1]) == [[6]]
    both.follow(1, [1, 5, 9, 1, 6, 8, 1], None)  # equally frequent: the later one
    assert both.propose([1], [3]) == [[6]]


def test_a_longer_match_is_followed_further():
    text = list(range(10, 30))
    both = Both(SuffixOptions(max_cached_tokens=0))
    for num_matched, drafts in ((1, []), (2, [12, 13]), (5, text[5:10]), (9, text[9:17])):
        both.follow(0, [*text, 99, *text[:num_matched]], None)
        assert both.propose([0], [8]) == [drafts]


def test_a_pattern_repeats_behind_what_is_known():
    both = Both(SuffixOptions(max_cached_tokens=0))
    both.follow(0, [9, 1, 2, 3, 1, 2, 3, 1, 2, 3], None)
    assert both.propose([0], [6]) == [[1, 2, 3, 1, 2, 3]]


OUTPUT = [50, 51, 52, 53, 54, 55, 56, 57]


def drafts_after(both: Both, key: str | None, prompt: list[int], output: list[int]) -> list[int]:
    """Of a new request in row 1 that has put out so much."""
    both.follow(1, prompt + output, key, len(output))
    return both.propose([1], [4])[0]


@pytest.mark.parametrize("is_live", [True, False])
def test_requests_of_one_key_are_drafted_from_each_other(is_live):
    both = Both(SuffixOptions())
    both.follow(0, [1, 2, *OUTPUT], "tenant", len(OUTPUT))
    both.propose([0], [0])
    if not is_live:
        both.forget(0)
    assert drafts_after(both, "tenant", [7], OUTPUT[:3]) == OUTPUT[3:6]
    assert drafts_after(both, "tenant", [7, *OUTPUT[:3]], []) == OUTPUT[3:6]  # the end of a prompt matches, too
    assert drafts_after(both, "other", [7], OUTPUT[:3]) == []
    assert drafts_after(both, None, [7], OUTPUT[:3]) == []


def test_prompts_are_shared_with_nobody():
    both = Both(SuffixOptions())
    both.follow(0, [*OUTPUT, 3], "tenant", 1)
    both.propose([0], [0])
    assert drafts_after(both, "tenant", [7], OUTPUT[:3]) == []


def test_who_comes_back_after_a_preemption_is_counted_once():
    both = Both(SuffixOptions(min_shared_match=1))
    for _ in range(5):
        both.follow(0, [1, 2, 60, 61], "tenant", 2)
        both.propose([0], [0])
        for _ in range(3):  # it comes back with what it has put out
            both.follow(0, [1, 2, 60, 61], "tenant")
            both.propose([0], [0])
    assert both.proposer.statistics().num_cached_tokens == 10


def test_another_keys_traffic_changes_no_draft():
    """As long as there is room for both."""
    random = np.random.default_rng(2)
    outputs = [random.integers(0, 3, 12).tolist() for _ in range(12)]
    seen = []
    for others in (False, True):
        both = Both(SuffixOptions(min_shared_match=2))
        drafts = []
        for index, output in enumerate(outputs):
            if others:
                both.follow(0, [8, *outputs[-index]], "b", 12)
                both.propose([0], [3])
            both.follow(1, [9, *output], "a", 12)
            drafts.append(both.propose([1], [6]))
        seen.append(drafts)
    assert seen[0] == seen[1]
    assert any(drafts != [[]] for drafts in seen[0])


def test_the_oldest_output_goes_first():
    both = Both(SuffixOptions(max_cached_tokens=16))
    both.follow(0, [1, *OUTPUT], "tenant", len(OUTPUT))
    both.propose([0], [0])
    both.forget(0)
    assert drafts_after(both, "tenant", [7, *OUTPUT[:3]], []) == OUTPUT[3:6]
    both.follow(0, list(range(200, 214)), "tenant", 14)
    both.propose([0], [0])
    assert drafts_after(both, "tenant", [7, *OUTPUT[:3]], []) == []
    assert both.proposer.statistics().num_cached_tokens == 16


def test_a_forgotten_row_is_drafted_from_by_nobody():
    """Not even if its tokens are still in the batch's array."""
    both = Both(SuffixOptions())
    pattern = [1, 2, 3, 4] * 4
    both.follow(0, pattern, None)
    assert both.propose([0], [4]) == [[1, 2, 3, 4]]
    assert both.proposer.statistics().num_row_tokens > 0
    both.forget(0)
    assert both.proposer.statistics().num_row_tokens == 0
    both.batch.num_known[0] = 2  # of another request
    assert both.propose([0], [4]) == [[]]
    both.batch.num_known[0] = 0
    both.batch.put(0, [1, 2, 9, 1, 2])
    assert both.propose([0], [2]) == [[9, 1]]


def test_memory_does_not_grow():
    options = SuffixOptions(max_cached_tokens=64)
    both = Both(options)
    before = both.proposer.statistics().memory_bytes
    random = np.random.default_rng(4)
    for index in range(60):
        both.follow(index % ROWS, random.integers(0, 9, 40).tolist(), f"key {index}", 20)
        both.propose(list(range(ROWS)), [4] * ROWS)
    after = both.proposer.statistics()
    assert (after.memory_bytes, after.num_cached_tokens) == (before, 64)
    larger = SuffixProposer(msgspec.structs.replace(options, max_cached_tokens=128), ROWS, 64).statistics()
    assert before < larger.memory_bytes <= before + 64 * 48


@pytest.mark.parametrize("name", ["min_match", "min_shared_match"])
def test_a_match_that_cannot_be(name):
    with pytest.raises(ConfigError, match=f"{name} is 9, max_match 8"):
        SuffixProposer(SuffixOptions(**{name: 9, "max_match": 8}), 1, 64)
