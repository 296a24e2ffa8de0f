"""A choice that is resumed at any token gets exactly the text of an undisturbed one, whatever ids and stop strings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.mailbox.messages.requests import Delivered
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.tests.text.answer_oracle import expected_answer, make_state, run
from callboard.text import Tokenizer

STOPS = st.lists(st.text(alphabet="abT é日h", min_size=1, max_size=4), max_size=3).map(tuple)
SAMPLING = st.builds(
    SamplingParams,
    seed=st.just(1),
    stop=STOPS,
    min_tokens=st.sampled_from([0, 0, 1, 3, 20]),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
)


def check(tokenizer: Tokenizer, ids: list[int], sampling: SamplingParams, size: int) -> None:
    deltas, end = run(make_state(tokenizer, sampling), ids, [1])
    whole = "".join(text for _, text in deltas)
    expected = expected_answer(tokenizer, ids, sampling)
    assert (len(deltas), whole, end.stop_reason) == expected
    num_chars = 0
    for num_tokens in range(len(deltas)):
        if num_tokens:
            num_chars += len(deltas[num_tokens - 1][1])
        delivered = Delivered(0, ids[:num_tokens], num_chars)
        state = make_state(tokenizer, sampling, delivered)
        assert state.num_tokens == num_tokens, "known before it has caught up"
        state.catch_up()
        rest, resumed_end = run(state, ids[num_tokens:], [size])
        assert whole[:num_chars] + "".join(text for _, text in rest) == whole
        assert resumed_end.reason == end.reason and resumed_end.stop_reason == expected.stop
        if expected.stop is not None:
            assert resumed_end.usage == end.usage
        ended = make_state(tokenizer, sampling, delivered)
        until_now = expected_answer(tokenizer, ids[:num_tokens], sampling).text
        assert whole[:num_chars] + ended.flush() == until_now, "an abort holds nothing back"


no_deadline = settings(deadline=None, max_examples=150)


@pytest.mark.slow
@no_deadline
@given(data=st.data(), sampling=SAMPLING, size=st.integers(1, 4))
def test_any_ids_of_a_byte_level_vocabulary(
    byte_level: Tokenizer, data: st.DataObject, sampling: SamplingParams, size: int
) -> None:
    """Broken UTF-8 and stop strings across the cut among them."""
    single = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    pieces = [single[bytes([byte])] for byte in (0x41, 0x80, 0xA9, 0xC3, 0xE6, 0x97, 0xA5, 0xF0, 0xFF)]
    words = byte_level.encode("abT é日hab", False)
    one = st.sampled_from(pieces) | st.sampled_from(words) | st.integers(-1, byte_level.vocab_size)
    check(byte_level, data.draw(st.lists(one, min_size=1, max_size=16)), sampling, size)


@pytest.mark.slow
@no_deadline
@given(data=st.data(), sampling=SAMPLING, size=st.integers(1, 4))
def test_any_ids_of_a_sentencepiece_vocabulary(
    sentencepiece: Tokenizer, data: st.DataObject, sampling: SamplingParams, size: int
) -> None:
    pieces = [sentencepiece._backend.token_to_id(f"<0x{value:02X}>") for value in (0x41, 0x20, 0x80, 0xC3, 0xA9)]
    words = [sentencepiece._backend.token_to_id("▁"), *sentencepiece.encode("The hat", False), 0, 1, 2]
    one = st.sampled_from(pieces) | st.sampled_from(words) | st.integers(-1, sentencepiece.vocab_size)
    check(sentencepiece, data.draw(st.lists(one, min_size=1, max_size=12)), sampling, size)


def test_less_text_than_the_ids_spell_may_have_been_delivered(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("The quick brown fox", False)
    sampling = SamplingParams(seed=1, stop=("fox",))
    for num_chars in range(len("The quick") + 1):
        cut = len(byte_level.encode("The quick", False))
        state = make_state(byte_level, sampling, Delivered(0, ids[:cut], num_chars))
        state.catch_up()
        deltas, end = run(state, ids[cut:], [1])
        text = "The quick"[:num_chars] + "".join(text for _, text in deltas)
        assert (text, end.stop_reason) == ("The quick brown ", "fox")
