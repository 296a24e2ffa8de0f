"""Where the text of an answer ends, and what it keeps of that end: worked examples."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.actors.text_state import TextState
from callboard.mailbox.messages.requests import Finish, TokenLogprobs, TokenText, Usage
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.tests.actors.delivery_parts import make_tokenizer
from callboard.tests.text.answer_oracle import LENGTH, make_state
from callboard.text import Tokenizer

EOS, A, B, C, AB, BC, E1, E2, SPACE = range(9)
"""The tokens of `make_tokenizer`; E1 and E2 together are one character."""


def state_of(**sampling: Any) -> TextState:
    return make_state(make_tokenizer(), SamplingParams(**({"seed": 1} | sampling)))


def one_by_one(state: TextState, *ids: int) -> list[str]:
    """The deltas; "." behind the one that ends the choice."""
    deltas = []
    for number, token_id in enumerate(ids):
        _, text, end = state.push([token_id], LENGTH if number == len(ids) - 1 else None)
        deltas.append(text + "." * (end is not None))
        if end is not None:
            break
    return deltas


@pytest.mark.parametrize(
    ("min_tokens", "ids", "deltas"),
    [
        (0, [A, B, C, A, B, C], ["", "", "."]),
        (2, [A, B, C, A, B, C], ["", "", "."]),  # it begins in the first two tokens and is completed behind them
        (3, [A, B, C, A, B, C, A], ["", "", "abc", "", "", "."]),
        (3, [A, B, C, B, C, A, A], ["", "", "abc", "b", "c", "", "aa."]),  # of what was passed by nothing is left
        (6, [A, B, C, A, B, C], ["", "", "abc", "", "", "abc."]),
        (9, [A, B, C, E1], ["", "", "abc", "\ufffd."]),
        (3, [A, B, E1, C], ["", "", "", "ab\ufffdc."]),
    ],
)
def test_a_stop_string_counts_if_a_token_behind_the_first_min_tokens_completes_it(
    min_tokens: int, ids: list[int], deltas: list[str]
) -> None:
    assert one_by_one(state_of(stop=("abc",), min_tokens=min_tokens), *ids) == deltas


def test_one_that_overlaps_one_that_was_passed_by_counts() -> None:
    assert one_by_one(state_of(stop=("aa",), min_tokens=2), A, A, A) == ["", "a", "."]


def test_an_included_stop_string_ends_the_text_and_nothing_is_held_back() -> None:
    state = state_of(stop=("bca", "ca"), include_stop_str_in_output=True)
    assert one_by_one(state, A, BC, AB, C) == ["a", "bc", "a."]
    state = state_of(stop=("bca",), include_stop_str_in_output=True)
    ids, text, end = state.push([A, BC, AB, C], LENGTH)
    assert (ids, text, end) == ([A, BC, AB], "abca", Finish("stop", Usage(1, 3, 0), "bca"))


def test_an_included_stop_string_may_have_begun_in_text_that_was_shown() -> None:
    state = state_of(stop=("abc",), include_stop_str_in_output=True, min_tokens=2)
    assert one_by_one(state, A, B, C, A) == ["a", "b", "c."]


@pytest.mark.parametrize(
    ("includes", "skips", "expected"),
    [(False, True, "a"), (False, False, "a"), (True, True, "a"), (True, False, "a<eos>")],
)
def test_the_end_of_sequence_has_text_only_if_it_is_to_be_included_and_not_skipped(
    includes: bool, skips: bool, expected: str
) -> None:
    state = state_of(include_stop_str_in_output=includes, skip_special_tokens=skips)
    end = Finish("stop", Usage(1, 2, 0))
    assert state.push([A, EOS], end) == ([A, EOS], expected, end)


@pytest.mark.parametrize("stops", [(), ("zz",)])
@pytest.mark.parametrize(("includes", "expected"), [(False, "ab"), (True, "abc")])
def test_a_stop_token_has_text_only_if_it_is_to_be_included(
    includes: bool, expected: str, stops: tuple[str, ...]
) -> None:
    state = state_of(stop=stops, include_stop_str_in_output=includes)
    end = Finish("stop", Usage(1, 2, 0), C)
    assert state.push([AB, C], end) == ([AB, C], expected, end)
    assert state.num_tokens == 2


def test_the_text_of_a_stop_token_completes_no_stop_string() -> None:
    end = Finish("stop", Usage(1, 2, 0), C)
    assert state_of(stop=("bc",)).push([AB, C], end) == ([AB, C], "ab", end)


@pytest.mark.parametrize("reason", ["length", "repetition", "abort", "error", "timeout"])
def test_every_other_end_of_the_schedulers_keeps_all_text(reason: str) -> None:
    end = Finish(reason, Usage(1, 2, 0), message="why" if reason == "error" else None)
    assert state_of(stop=("abz",)).push([AB, E1], end) == ([AB, E1], "ab\ufffd", end)


def test_special_tokens_inside_have_text_if_they_are_not_skipped() -> None:
    assert state_of(skip_special_tokens=False).push([A, EOS, B], None)[1] == "a<eos>b"
    assert state_of().push([A, EOS, B], None)[1] == "ab"
    ids, text, end = state_of(skip_special_tokens=False, stop=("<eos>b",)).push([A, EOS, B, C], None)
    assert (ids, text, end and end.stop_reason) == ([A, EOS, B], "a", "<eos>b")


def test_a_first_token_keeps_its_space(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    for tokenizer in (byte_level, sentencepiece):
        prompt, both = tokenizer.encode("The quick", False), tokenizer.encode("The quick fox", False)
        assert both[: len(prompt)] == prompt
        assert make_state(tokenizer, SamplingParams(seed=1)).push(both[len(prompt) :], LENGTH)[1] == " fox"


def test_log_probabilities_have_ids_ranks_and_exact_bytes() -> None:
    entries = [TokenLogprobs(E1, -1.0, [E1, SPACE], [-1.0, -2.0], 3), TokenLogprobs(EOS, -0.5, [], [])]
    assert state_of().describe(entries) == [
        TokenText("\ufffd", b"\xc3", -1.0, [("\ufffd", b"\xc3", -1.0), (" ", b" ", -2.0)], [E1, SPACE], 3),
        TokenText("<eos>", b"<eos>", -0.5, [], [], 0),
    ]
