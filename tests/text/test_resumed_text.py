"""A choice that is resumed at any token gets exactly the text of an undisturbed one, whatever ids and stop strings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.text_state import TextState
from callboard.mailbox.messages.requests import Delivered, Finish, Generate, TokenPrompt, Usage
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.text import Tokenizer

LENGTH = Finish("length", Usage(1, 0, 0))
STOPS = st.lists(st.text(alphabet="abT é日h", min_size=1, max_size=4), max_size=3).map(tuple)


def make_state(tokenizer: Tokenizer, stops: tuple[str, ...], delivered: Delivered) -> TextState:
    sampling = SamplingParams(seed=1, stop=stops)
    generate = Generate("r", 1, "frontend", "tokenizer", "scheduler", TokenPrompt([1]), sampling, 0)
    return TextState(tokenizer, generate, delivered, [1])


def brute_force(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...]) -> tuple[str, str | None]:
    """(text, stop string): the whole text, cut before the stop string that is complete first, the longest of those."""
    text = tokenizer.decode(ids)
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(state: TextState, ids: list[int], size: int) -> tuple[list[tuple[int, int]], str, Finish]:
    """Feed `ids` in pieces of `size`, the last with its end: [(tokens, characters) after each piece], text, end."""
    text, cuts = "", []
    for start in range(0, len(ids), size):
        is_last = start + size >= len(ids)
        _, new, end = state.push(ids[start : start + size], LENGTH if is_last else None)
        text += new
        if end is not None:
            return cuts, text, end
        cuts.append((start + size, len(text)))
    raise AssertionError("no end")


def check(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...], size: int) -> None:
    cuts, whole, end = run(make_state(tokenizer, stops, Delivered(0, [], 0)), ids, 1)
    expected, stop = brute_force(tokenizer, ids, stops)
    assert (whole, end.stop_reason) == (expected, stop)
    for num_tokens, num_chars in [(0, 0), *cuts]:
        state = make_state(tokenizer, stops, Delivered(0, ids[:num_tokens], num_chars))
        assert state.num_tokens == num_tokens, "known before it has caught up"
        state.catch_up()
        _, rest, resumed_end = run(state, ids[num_tokens:], size)
        assert whole[:num_chars] + rest == whole
        assert resumed_end.reason == end.reason and resumed_end.stop_reason == stop
        if stop is not None:
            assert resumed_end.usage == end.usage
        ended = make_state(tokenizer, stops, Delivered(0, ids[:num_tokens], num_chars))
        until_now, _ = brute_force(tokenizer, ids[:num_tokens], stops)
        assert whole[:num_chars] + ended.flush() == until_now, "an abort holds nothing back"


no_deadline = settings(deadline=None, max_examples=150)


@pytest.mark.slow
@no_deadline
@given(data=st.data(), stops=STOPS, size=st.integers(1, 4))
def test_any_ids_of_a_byte_level_vocabulary(
    byte_level: Tokenizer, data: st.DataObject, stops: tuple[str, ...], size: int
) -> None:
    """Broken UTF-8 and stop strings across the cut among them."""
    single = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    pieces = [single[bytes([byte])] for byte in (0x41, 0x80, 0xA9, 0xC3, 0xE6, 0x97, 0xA5, 0xF0, 0xFF)]
    words = byte_level.encode("abT é日hab", False)
    one = st.sampled_from(pieces) | st.sampled_from(words) | st.integers(-1, byte_level.vocab_size)
    check(byte_level, data.draw(st.lists(one, min_size=1, max_size=16)), stops, size)


@pytest.mark.slow
@no_deadline
@given(data=st.data(), stops=STOPS, size=st.integers(1, 4))
def test_any_ids_of_a_sentencepiece_vocabulary(
    sentencepiece: Tokenizer, data: st.DataObject, stops: tuple[str, ...], size: int
) -> None:
    pieces = [sentencepiece._backend.token_to_id(f"<0x{value:02X}>") for value in (0x41, 0x20, 0x80, 0xC3, 0xA9)]
    words = [sentencepiece._backend.token_to_id("▁"), *sentencepiece.encode("The hat", False), 0, 1, 2]
    one = st.sampled_from(pieces) | st.sampled_from(words) | st.integers(-1, sentencepiece.vocab_size)
    check(sentencepiece, data.draw(st.lists(one, min_size=1, max_size=12)), stops, size)


def test_less_text_than_the_ids_spell_may_have_been_delivered(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("The quick brown fox", False)
    for num_chars in range(len("The quick") + 1):
        cut = len(byte_level.encode("The quick", False))
        state = make_state(byte_level, ("fox",), Delivered(0, ids[:cut], num_chars))
        state.catch_up()
        _, rest, end = run(state, ids[cut:], 1)
        assert ("The quick"[:num_chars] + rest, end.stop_reason) == ("The quick brown ", "fox")
