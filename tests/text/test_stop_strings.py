"""Stop strings against a brute-force twin, over any cut of the text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import InvalidRequest
from callboard.text import StopStrings


def brute_force(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The stop string that is complete first, the longest of those; the text before it."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def longest_partial(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that begins a stop string and is not the whole of it."""
    return max((size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


few = st.text(alphabet="abé", max_size=14)


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(pieces=st.lists(few, max_size=8), stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4))
def test_equals_brute_force_over_any_chunking(pieces: list[str], stops: list[str]) -> None:
    expected, expected_match = brute_force("".join(pieces), stops)
    watcher = StopStrings(stops)
    shown, seen, match = "", "", None
    for piece in pieces:
        seen += piece
        visible, match = watcher.push(piece)
        shown += visible
        if match is not None:
            assert brute_force(seen, stops)[1] == match, "found as soon as it is complete"
            break
        assert len(shown) == len(seen) - longest_partial(seen, stops), "no more held back than needed"
    assert match == expected_match
    assert shown + watcher.finish() == expected


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(
    pieces=st.lists(few, max_size=8),
    passed=st.integers(0, 8),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=5), max_size=4),
    keeps=st.booleans(),
)
def test_what_is_passed_by_ends_nothing_but_may_begin_something(
    pieces: list[str], passed: int, stops: list[str], keeps: bool
) -> None:
    """As if the first end that counts were looked for behind the first `passed` pieces."""
    text, border = "".join(pieces), len("".join(pieces[:passed]))
    ends = [end for end in range(border + 1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected, expected_match = text, None
    if ends:
        expected_match = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        expected = text[: ends[0] if keeps else ends[0] - len(expected_match)]
    watcher = StopStrings(stops, keeps_match=keeps)
    shown, match = "", None
    for number, piece in enumerate(pieces):
        if number < passed:
            shown += watcher.pass_by(piece)
        else:
            visible, match = watcher.push(piece)
            shown += visible
            if match is not None:
                break
        seen = "".join(pieces[: number + 1])
        assert len(shown) == len(seen) - (0 if keeps else longest_partial(seen, stops))
    assert (shown + watcher.finish(), match) == (expected, expected_match)


def test_examples() -> None:
    watcher = StopStrings(["\n\n", "User:"])
    assert watcher.push("Hello\n") == ("Hello", None)
    assert watcher.push("Us") == ("\nUs"[:1], None)
    assert watcher.push("e it") == ("Use it", None)
    assert watcher.push("\n\nmore") == ("", "\n\n")
    assert watcher.match == "\n\n"
    assert watcher.push("later") == ("", "\n\n")
    assert watcher.finish() == ""


def test_the_first_complete_wins_and_of_those_the_longest() -> None:
    assert StopStrings(["abc", "b"]).push("abc") == ("a", "b")
    assert StopStrings(["c", "abc", "bc"]).push("xabc") == ("x", "abc")


def test_an_overlap_is_found() -> None:
    assert StopStrings(["aab"]).push("aaab") == ("a", "aab")


def test_without_stops_nothing_is_held() -> None:
    assert StopStrings([]).push("text") == ("text", None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        StopStrings(["a", ""])
