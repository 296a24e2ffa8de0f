"""The gate before a grammar, against a twin that looks at whole texts."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import GrammarRefused
from callboard.mailbox.messages.grammar import Constraint, ReasoningGate, RegexFormat
from callboard.structured_output.llguidance_backend import LLGuidanceBackend
from callboard.structured_output.vocabulary import Vocabulary

EOS = 0
WORDS = [
    b"a",
    b"<",
    b"/",
    b">",
    b"1",
    b"</",
    b"/>",
    b"a<",
    b">1",
    b"><",
    b"</>",
    b"<>",
    b"a</>",
    b"</>1",
    b"<>a",
    b"<a",
]
"""Tokens that cut the markers `<>` and `</>` in every way, and hold more than them."""
VOCABULARY = Vocabulary([b"<eos>", *WORDS, b"<|x|>"], [EOS, len(WORDS) + 1], [EOS])
MARK = len(WORDS) + 1


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(VOCABULARY)


def twin(tokens: tuple[int, ...], gate: ReasoningGate, pattern: str) -> bool:
    """Whether the tokens are a whole answer, by their text. The end marker has to end with a token."""
    text = b"".join(VOCABULARY.tokens[i] for i in tokens).decode()
    ends = list(itertools.accumulate(len(VOCABULARY.tokens[i]) for i in tokens))
    if not gate.is_open:
        if re.fullmatch(pattern, text) and not text.startswith(gate.begin):
            return True
        if not text.startswith(gate.begin):
            return False
    start = 0 if gate.is_open else len(gate.begin)
    found = text.find(gate.end, start)
    if found < 0:
        return False
    end = found + len(gate.end)
    return end in ends and re.fullmatch(pattern, text[end:]) is not None


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("pattern", ["1*", "[a1<]*", "1|<1"])
def test_every_short_answer_passes_as_its_text_says(is_open, pattern, backend):
    gate = ReasoningGate("<>", "</>", is_open)
    grammar = backend.compile(Constraint(RegexFormat(pattern), gate))
    for size in range(4):
        for tokens in itertools.product(range(1, len(WORDS) + 1), repeat=size):
            matcher = grammar.matcher()
            passes = matcher.accept(tokens) == size and matcher.may_end
            assert passes == twin(tokens, gate, pattern), [VOCABULARY.tokens[i] for i in tokens]


@given(tokens=st.lists(st.integers(1, len(WORDS)), max_size=9), is_open=st.booleans())
@settings(max_examples=200)
def test_any_answer_passes_as_its_text_says(tokens, is_open, backend):
    gate = ReasoningGate("<>", "</>", is_open)
    matcher = backend.compile(Constraint(RegexFormat("[a1]*"), gate)).matcher()
    passes = matcher.accept(tokens) == len(tokens) and matcher.may_end
    assert passes == twin(tuple(tokens), gate, "[a1]*")


def test_markers_that_are_special_tokens(backend):
    gate = ReasoningGate("<|x|>", "a<|x|>", False)
    matcher = backend.compile(Constraint(RegexFormat("1"), gate)).matcher()
    a, one = 1, 5
    assert matcher.num_valid([MARK, MARK]) == 1  # another mark is no text
    assert matcher.num_valid([MARK, one, EOS]) == 2  # and the reasoning does not end the answer
    assert matcher.accept([MARK, one, a, MARK, one, EOS]) == 6
    matcher.rollback(0)
    assert matcher.accept([one, EOS]) == 2
    matcher.rollback(0)
    assert matcher.num_valid([2, 3]) == 0


def test_a_grammar_without_a_beginning_to_wait_for_holds_at_once(backend):
    matcher = backend.compile(Constraint(RegexFormat("1"), ReasoningGate("", "</>", False))).matcher()
    assert matcher.accept([1]) == 0 and matcher.accept([5]) == 1


def test_a_reasoning_without_an_end_is_refused(backend):
    with pytest.raises(GrammarRefused, match="no end marker"):
        backend.compile(Constraint(RegexFormat("1"), ReasoningGate("<>", "", False)))
