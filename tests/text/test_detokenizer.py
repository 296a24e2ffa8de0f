"""The incremental detokenizer gives what the full decoding gives, however the ids are cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callboard.text import Detokenizer, Tokenizer

no_deadline = settings(deadline=None, max_examples=300)


def cut(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    """`ids` in pieces, empty ones among them."""
    borders = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=len(ids) + 2)))
    return [ids[start:end] for start, end in zip([0, *borders], [*borders, len(ids)], strict=True)]


def check(tokenizer: Tokenizer, pieces: list[list[int]], skipped: bool) -> None:
    ids = [token_id for piece in pieces for token_id in piece]
    whole = tokenizer.decode(ids, skipped)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skipped)
    given_text = ""
    for piece in pieces:
        given_text += detokenizer.push(piece)
        assert whole.startswith(given_text), "what was given is never taken back"
    assert given_text + detokenizer.finish() == whole


@pytest.mark.slow
@no_deadline
@given(data=st.data(), skipped=st.booleans())
def test_any_ids_of_a_byte_level_vocabulary(byte_level: Tokenizer, data: st.DataObject, skipped: bool) -> None:
    ids = data.draw(st.lists(st.integers(-1, byte_level.vocab_size), max_size=30))
    check(byte_level, cut(data, ids), skipped)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_special_tokens_that_are_kept(byte_level: Tokenizer, sentencepiece: Tokenizer, data: st.DataObject) -> None:
    """As if the others were not there."""
    for tokenizer in (byte_level, sentencepiece):
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1) | st.integers(0, 3), max_size=20))
        kept = tokenizer.special_ids(["<|end|>", "</s>", "no token", "a"])
        assert len(kept) == 1
        there = [token_id for token_id in ids if token_id in kept or not tokenizer.is_special(token_id)]
        detokenizer = Detokenizer(tokenizer, kept=kept)
        text = "".join(detokenizer.push(piece) for piece in cut(data, ids)) + detokenizer.finish()
        assert text == tokenizer.decode(there, skip_special_tokens=False)


@pytest.mark.slow
@no_deadline
@given(data=st.data(), skipped=st.booleans())
def test_bytes_of_a_byte_level_vocabulary(byte_level: Tokenizer, data: st.DataObject, skipped: bool) -> None:
    """Tokens of one byte only, many of them parts of characters: broken UTF-8 of every kind."""
    single = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    byte = st.sampled_from([0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF])
    ids = [single[bytes([value])] for value in data.draw(st.lists(byte, max_size=20))]
    check(byte_level, cut(data, ids), skipped)


@pytest.mark.slow
@no_deadline
@given(data=st.data(), text=st.text(max_size=20), skipped=st.booleans())
def test_text_gives_no_replacement_character(
    byte_level: Tokenizer, sentencepiece: Tokenizer, data: st.DataObject, text: str, skipped: bool
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        pieces = cut(data, tokenizer.encode(text, False))
        check(tokenizer, pieces, skipped)
        detokenizer = Detokenizer(tokenizer)
        given_texts = [detokenizer.push(piece) for piece in pieces]
        assert ("\ufffd" in "".join(given_texts)) <= ("\ufffd" in text)


@pytest.mark.slow
@no_deadline
@given(data=st.data(), skipped=st.booleans())
def test_any_ids_of_a_sentencepiece_vocabulary(sentencepiece: Tokenizer, data: st.DataObject, skipped: bool) -> None:
    byte_pieces = [
        sentencepiece._backend.token_to_id(f"<0x{value:02X}>") for value in (0x41, 0x20, 0x80, 0xC3, 0xE2, 0xA9)
    ]
    special_or_space = [0, 1, 2, *sentencepiece.encode("", False), sentencepiece._backend.token_to_id("▁")]
    one = st.sampled_from(byte_pieces) | st.sampled_from(special_or_space) | st.integers(-1, sentencepiece.vocab_size)
    check(sentencepiece, cut(data, data.draw(st.lists(one, max_size=16))), skipped)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(data=st.data(), skipped=st.booleans())
def test_a_continuation_is_what_the_ids_add_to_a_text(
    byte_level: Tokenizer, sentencepiece: Tokenizer, data: st.DataObject, skipped: bool
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        before = tokenizer.encode("The quick", False)
        start = tokenizer.decode(before, skipped)
        ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size), max_size=12))
        detokenizer = Detokenizer(tokenizer, skipped, is_continuation=True)
        given_text = "".join(map(detokenizer.push, cut(data, ids))) + detokenizer.finish()
        assert start + given_text == tokenizer.decode(before + ids, skipped)


@example(text="日本 naïve 👍🏽")
@given(text=st.text(min_size=1, max_size=8))
@no_deadline
def test_a_character_comes_with_its_last_byte(byte_level: Tokenizer, text: str) -> None:
    single = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    detokenizer = Detokenizer(byte_level)
    for character in text:
        deltas = [detokenizer.push([single[bytes([byte])]]) for byte in character.encode()]
        assert deltas == [""] * (len(deltas) - 1) + [character]
    assert detokenizer.finish() == ""


def test_a_tail_that_is_no_character_becomes_one_replacement(byte_level: Tokenizer) -> None:
    single = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push([single[b"a"], single[b"\xf0"], single[b"\x9f"]]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_leading_space(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    """A byte-level first token keeps its space; a SentencePiece-like one loses it, as in the full decoding."""
    for tokenizer, expected in ((byte_level, " fox"), (sentencepiece, "fox fox")):
        ids = tokenizer.encode(" fox" if expected == " fox" else "fox fox", False)
        detokenizer = Detokenizer(tokenizer)
        assert "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.finish() == expected


def test_state_is_rebuilt_from_ids(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("Emoji 👩‍🚀 and more", False)
    for known in range(len(ids)):
        first = Detokenizer(smollm2)
        shown = first.push(ids[:known])
        second = Detokenizer(smollm2)
        assert second.push(ids[:known]) == shown
        assert shown + second.push(ids[known:]) == "Emoji 👩‍🚀 and more"


@pytest.mark.parametrize("skipped", [True, False])
def test_special_tokens_inside_a_character(byte_level: Tokenizer, skipped: bool) -> None:
    single = {byte_level.token_bytes(token_id): token_id for token_id in range(byte_level.vocab_size)}
    check(byte_level, [[single[b"\xc3"]], [1], [single[b"\xa9"]]], skipped)
