"""Text, stop strings and log-probabilities with the vocabularies of GPT-2, DeepSeek and Mistral (SentencePiece)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from callboard.actors.bad_words import bad_token_ids
from callboard.mailbox.messages.requests import TokenLogprobs
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.tests.text.answer_oracle import LENGTH, Answer, answer_in_pieces, expected_answer, make_state
from callboard.tests.text.real_tokenizers import NAMES, load_real
from callboard.text import Detokenizer, Tokenizer

TEXTS = (
    'Once upon a time there was a king who had three daughters.\n\nThe eldest asked: "Why?"',
    "def f(a, b):\n    return a  +  b\n\n\n# Größe, naïve café, e\u0301",
    "日本の首都は東京です。\u9fdc русский язык, Ελληνικά",
    '\U0001fae0 \U0001f469\u200d\U0001f4bb\U0001f44d\U0001f3fd </think> 12345678 {"a": [1, 2]}<|endoftext|>',
)


@pytest.fixture(scope="session", params=NAMES)
def real(request: pytest.FixtureRequest) -> Tokenizer:
    return load_real(request.param)


class Draw:
    """Random ids of a vocabulary: of texts, of any kind, and of those that are only parts of characters."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.random = random.Random(seed)
        self._all = range(tokenizer.vocab_size)
        self._texts = [tokenizer.encode(text, False) for text in TEXTS]
        self._parts = [i for i in self._all if "\ufffd" in tokenizer.token_text(i)]

    def ids(self, most: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < self.random.randint(1, most):
            match self.random.randrange(4):
                case 0:
                    ids.append(self.random.choice(self._all))
                case 1:
                    ids.append(self.random.choice(self._parts))
                case _:
                    text = self.random.choice(self._texts)
                    start = self.random.randrange(len(text))
                    ids += text[start : start + self.random.randint(1, 12)]
        return ids[:most]

    def sizes(self) -> list[int]:
        return [self.random.choice((1, 1, 2, 3, 7)) for _ in range(5)]

    def stop(self, text: str) -> str:
        """As a rule a part of `text`, so that it stands across the borders of tokens."""
        start = self.random.randrange(len(text) + 1)
        part = text[start : start + self.random.randint(1, 8)]
        return part + self.random.choice(("", "", "", "e", "\ufffd")) or "the"


def in_pieces(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    pieces = []
    while ids:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(ids[:size])
        ids = ids[size:]
    return pieces


@pytest.mark.slow
@pytest.mark.parametrize("skipped", [True, False])
def test_joined_deltas_are_what_the_tokenizers_package_decodes(real: Tokenizer, skipped: bool) -> None:
    draw = Draw(real, 1)
    for _ in range(300):
        ids = draw.ids(40)
        whole = real._backend.decode(ids, skip_special_tokens=skipped)
        for sizes in ([1], draw.sizes()):
            detokenizer = Detokenizer(real, skipped)
            given = ""
            for piece in in_pieces(ids, sizes):
                given += detokenizer.push(piece)
                assert whole.startswith(given), "what was given is never taken back"
            assert given + detokenizer.finish() == whole
            assert "\ufffd" not in given or "\ufffd" in whole


@pytest.mark.slow
def test_as_a_continuation_they_are_what_the_ids_add_to_a_text(real: Tokenizer) -> None:
    draw = Draw(real, 2)
    before = real.encode("Say it: yes", False)
    start = real._backend.decode(before, skip_special_tokens=True)
    for _ in range(200):
        ids = draw.ids(20)
        detokenizer = Detokenizer(real, is_continuation=True)
        given = "".join(map(detokenizer.push, in_pieces(ids, draw.sizes()))) + detokenizer.finish()
        assert start + given == real._backend.decode(before + ids, skip_special_tokens=True)


def check_stop_strings(tokenizer: Tokenizer, num_cases: int, seed: int) -> None:
    draw = Draw(tokenizer, seed)
    num_stopped = 0
    for _ in range(num_cases):
        ids = draw.ids(16)
        text = expected_answer(tokenizer, ids, SamplingParams(seed=1)).text
        sampling = SamplingParams(
            seed=1,
            stop=tuple(draw.stop(text) for _ in range(draw.random.randint(1, 4))),
            min_tokens=draw.random.choice((0, 0, 0, 1, 4, 30)),
            include_stop_str_in_output=draw.random.random() < 0.3,
            skip_special_tokens=draw.random.random() < 0.8,
        )
        expected = expected_answer(tokenizer, ids, sampling)
        num_stopped += expected.stop is not None
        assert answer_in_pieces(tokenizer, ids, sampling, [len(ids)]) == expected, "not streaming"
        assert answer_in_pieces(tokenizer, ids, sampling, draw.sizes()) == expected, "streaming"
    assert num_stopped > num_cases / 3


@pytest.mark.slow
def test_stop_strings_over_the_borders_of_tokens(real: Tokenizer) -> None:
    check_stop_strings(real, 500, 3)


@pytest.mark.nightly
def test_stop_strings_in_ten_thousand_cases(real: Tokenizer) -> None:
    check_stop_strings(real, 10_000, 4)


def test_a_stop_string_is_not_shown_in_part(real: Tokenizer) -> None:
    """Of the greedy text T, each stop string T[i:i+7] gives T up to its first place, streaming or not."""
    ids = real.encode(TEXTS[0], False)
    text = expected_answer(real, ids, SamplingParams(seed=1)).text
    for place in range(20):
        stop = text[place * 3 : place * 3 + 7]
        sampling = SamplingParams(seed=1, stop=(stop,))
        state = make_state(real, sampling)
        shown = ""
        for token_id in ids:
            _, delta, end = state.push([token_id], None)
            shown += delta
            assert text[: text.find(stop)].startswith(shown)
            if end is not None:
                break
        assert (shown, end and end.stop_reason) == (text[: text.find(stop)], stop)
        assert answer_in_pieces(real, ids, sampling, [len(ids)]) == Answer(state.num_tokens, shown, stop)


def test_no_cut_of_the_tokens_changes_the_answer(real: Tokenizer) -> None:
    """All at once, one by one, and every cut in two."""
    ids = real.encode(TEXTS[3], False)
    for sampling in (
        SamplingParams(seed=1, stop=("78 {",)),
        SamplingParams(seed=1, stop=("\u200d\U0001f4bb",), include_stop_str_in_output=True, min_tokens=3),
        SamplingParams(seed=1, skip_special_tokens=False),
    ):
        expected = expected_answer(real, ids, sampling)
        assert (expected.stop is None) == (not sampling.stop)
        for sizes in ([len(ids)], [1], *([cut, len(ids) - cut] for cut in range(1, len(ids)))):
            assert answer_in_pieces(real, ids, sampling, sizes) == expected


def test_bytes_of_the_tokens_join_to_the_text(real: Tokenizer) -> None:
    for text in TEXTS:
        ids = [token_id for token_id in real.encode(text, False) if not real.is_special(token_id)]
        state = make_state(real, SamplingParams(seed=1))
        _, content, _ = state.push(ids, LENGTH)
        entries = state.describe([TokenLogprobs(token_id, -1.0, [token_id], [-1.0]) for token_id in ids])
        assert b"".join(entry.data for entry in entries).decode() == content
        for entry in entries:
            assert entry.text == entry.data.decode("utf-8", "replace") and entry.data
            assert entry.top == [(entry.text, entry.data, -1.0)]


def test_the_fewest_tokens_of_a_text(real: Tokenizer) -> None:
    """A bound that costs nothing, and that refuses megabytes unread for every one of these."""
    longest = max(len(real.token_string(token_id)) for token_id in range(real.vocab_size))
    assert real.fewest_tokens("a" * 16_000_000) == 16_000_000 // longest
    repeated = [character * 5000 for character in (" ", "\n", "=", "日", "\U0001fae0", "\u0301", "\0")]
    for text in (*TEXTS, *repeated, " ".join(TEXTS) * 50):
        assert 0 < real.fewest_tokens(text) <= len(real.encode(text, False)) or len(text) < longest


FACTS = [
    ("gpt2", "\U0001fae0", [8582, 104, 254], ["", "", "\U0001fae0"]),
    ("deepseek", "\U0001fae0", [3574, 107, 257], ["", "", "\U0001fae0"]),
    ("gpt2", "\u9fdc", [165, 123, 250], ["", "", "\u9fdc"]),
    ("deepseek", "\u9fdc", [168, 126, 253], ["", "", "\u9fdc"]),
    ("gpt2", "\U0001f600", [47249, 222], ["", "\U0001f600"]),
    ("deepseek", "\U0001f600", [28927, 225], ["", "\U0001f600"]),
    ("gpt2", "e\u0301", [68, 136, 223], ["e", "", "\u0301"]),
    ("deepseek", "e\u0301", [71, 17793], ["e", "\u0301"]),
    ("deepseek", "</think>", [128822], ["</think>"]),
    # The joiner between two pictures is split, too.
    (
        "gpt2",
        "\U0001f469\u200d\U0001f4bb",
        [41840, 102, 447, 235, 8582, 240, 119],
        ["", "\U0001f469", "", "\u200d", "", "", "\U0001f4bb"],
    ),
    (
        "deepseek",
        "\U0001f469\u200d\U0001f4bb",
        [25730, 105, 46088, 23903, 122],
        ["", "\U0001f469", "\u200d", "", "\U0001f4bb"],
    ),
]


@pytest.mark.parametrize(("name", "text", "ids", "deltas"), FACTS)
def test_split_characters(name: str, text: str, ids: list[int], deltas: list[str]) -> None:
    tokenizer = load_real(name)
    assert tokenizer.encode(text, False) == ids
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([token_id]) for token_id in ids] == deltas and detokenizer.finish() == ""


@pytest.mark.parametrize(("name", "behind_a_space"), [("gpt2", 25291), ("deepseek", 66425)])
def test_a_bad_word_is_other_tokens_behind_a_space(name: str, behind_a_space: int) -> None:
    alone, spaced = bad_token_ids(load_real(name), ("exaggerated",))
    assert len(alone) == 3 and spaced == (behind_a_space,)
