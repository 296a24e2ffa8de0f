"""Repetition at the end of an output, against a brute-force twin and by what it looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.mailbox.messages.sampling import RepetitionDetection
from callboard.scheduling.repetition import ends_in_repetition
from callboard.tests.scheduling.fake_model import repeats

detections = st.builds(
    lambda smallest, more, count: RepetitionDetection(smallest + more, smallest, count),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(2, 4),
)
endings = st.builds(
    lambda head, pattern, count, rest: head + pattern * count + pattern[: rest % len(pattern)],
    st.lists(st.integers(0, 2), max_size=12),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(0, 5),
)


@settings(deadline=None)
@given(prompt=st.lists(st.integers(0, 2), max_size=8), output=endings, detection=detections)
def test_it_is_found_exactly_where_brute_force_finds_it(
    prompt: list[int], output: list[int], detection: RepetitionDetection
) -> None:
    assert ends_in_repetition(prompt + output, len(prompt), detection) == repeats(output, detection)


@pytest.mark.parametrize(
    ("output", "detection", "is_found"),
    [
        ([1, 1], RepetitionDetection(1), True),
        ([1, 1], RepetitionDetection(1, min_count=3), False),
        ([1, 1, 1], RepetitionDetection(1, min_count=3), True),
        ([1, 2, 1, 2], RepetitionDetection(1), False),
        ([1, 2, 1, 2], RepetitionDetection(2), True),
        ([1, 2, 1, 2], RepetitionDetection(9, 3), False),
        ([1, 1, 1, 1], RepetitionDetection(2, 2), True),
        ([1, 2, 3, 1, 2, 3, 4], RepetitionDetection(5), False),
    ],
)
def test_patterns(output: list[int], detection: RepetitionDetection, is_found: bool) -> None:
    assert ends_in_repetition(output, 0, detection) is is_found


def test_a_prompt_that_repeats_itself_is_none_of_the_output() -> None:
    assert not ends_in_repetition([7, 7, 7, 7], 3, RepetitionDetection(1))
    assert not ends_in_repetition([1, 2, 1, 2], 2, RepetitionDetection(2))


class Watched(Sequence[int]):
    """Counts the looks at it."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids, self.num_looks, self.earliest = token_ids, 0, len(token_ids)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it looks at all tokens")

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        assert isinstance(at, int)
        self.num_looks += 1
        self.earliest = min(self.earliest, at % len(self.token_ids))
        return self.token_ids[at]


def test_a_token_costs_a_look_for_each_size_however_long_the_output_is() -> None:
    output = Watched([*range(100_000)])
    assert not ends_in_repetition(output, 0, RepetitionDetection(16, 1, 4))
    assert output.num_looks <= 17 and output.earliest >= len(output) - 17
