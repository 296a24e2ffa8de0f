"""Laws of every matcher: what a mask allows is what is accepted, and a prefix of an answer has one state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.mailbox.messages.grammar import (
    ChoiceFormat,
    ContentOrCalls,
    GrammarFormat,
    JsonFormat,
    ReasoningGate,
    RegexFormat,
    Tag,
    TagsFormat,
)
from callboard.structured_output.vocabulary import make_vocabulary

EOS, OTHER_EOS, MARK = 256, 257, 258
PERSON = '{"type":"object","properties":{"k":{"type":"string","maxLength":3},"n":{"type":"integer"}},"required":["k"]}'
CALLS = TagsFormat((Tag("<t>", '{"type":"integer"}', "</t>"),), separator=",", at_least_one=True)
MARKED_CALLS = TagsFormat((Tag("f", PERSON, "k"),), prefix="<|mark|>", at_least_one=True)
FORMS = {
    "json": (JsonFormat(PERSON), None),
    "any json": (JsonFormat("{}"), None),
    "regex": (RegexFormat("(ab|a)*c?"), None),
    "choice": (ChoiceFormat(("true", "tr", "k>x")), None),
    "lark": (GrammarFormat('start: "a" start? "b"'), None),
    "tags": (TagsFormat((Tag("<t>", '{"type":"integer"}', "</t>"),), triggers=("<t>",)), None),
    "special tags": (TagsFormat((Tag("<|mark|>", '{"type":"integer"}', "k"),), triggers=("<|mark|>",)), None),
    "content or calls": (ContentOrCalls(RegexFormat("<?[a-s]*>?"), CALLS, "<t>"), None),
    "special calls or content": (
        ContentOrCalls(JsonFormat(PERSON), MARKED_CALLS, "<|mark|>", content_begin="k<|mark|>"),
        None,
    ),
    "either behind reasoning": (
        ContentOrCalls(JsonFormat(PERSON), CALLS, "<t>"),
        ReasoningGate("<think>", "</think>", False),
    ),
    "behind reasoning": (RegexFormat("(true|k>x)*"), ReasoningGate("<think>", "</think>", True)),
    "maybe reasoning": (RegexFormat("[a-z<]*"), ReasoningGate("<think>", "</think>", False)),
    "special reasoning": (RegexFormat("[0-9]*"), ReasoningGate("<|mark|>", "k<|mark|>", False)),
}


@pytest.fixture(scope="module", params=sorted(FORMS))
def grammar(request, compile_bytes):
    form, reasoning = FORMS[request.param]
    return compile_bytes(form, reasoning)


def random_steps(matcher, mask_of, vocabulary, seed, num_steps):
    """Accept random tokens, the ends of an answer seldom; yields what came."""
    choice = np.random.Generator(np.random.PCG64(seed))
    for _ in range(num_steps):
        allowed = mask_of(matcher, vocabulary)
        texts = sorted(allowed - {EOS, OTHER_EOS}) or sorted(allowed)
        token_id = int(choice.choice(sorted(allowed) if choice.random() < 0.05 else texts))
        assert matcher.accept([token_id]) == 1
        yield token_id


def test_a_mask_allows_exactly_what_is_accepted(grammar, mask_of, byte_vocabulary):
    for seed in range(3):
        matcher = grammar.matcher()
        for _ in random_steps(matcher, mask_of, byte_vocabulary, seed, 12):
            version = matcher.num_accepted
            allowed = mask_of(matcher, byte_vocabulary)
            valid = {i for i in range(-1, byte_vocabulary.vocab_size + 1) if matcher.num_valid([i]) == 1}
            assert valid == allowed
            accepted = set()
            for token_id in range(-1, byte_vocabulary.vocab_size + 1):
                if matcher.accept([token_id]):
                    accepted.add(token_id)
                    matcher.rollback(version)
            assert accepted == allowed


def test_ends_are_allowed_all_or_none_and_other_marks_never(grammar, mask_of, byte_vocabulary, request):
    matcher = grammar.matcher()
    for _ in random_steps(matcher, mask_of, byte_vocabulary, 7, 40):
        allowed = mask_of(matcher, byte_vocabulary)
        assert ({EOS, OTHER_EOS} <= allowed) == matcher.may_end == bool(allowed & {EOS, OTHER_EOS})
        assert matcher.is_complete == (allowed == {EOS, OTHER_EOS})
        assert not any(byte_vocabulary.tokens[i] == b"" for i in allowed)
        assert "special" in request.node.callspec.id or MARK not in allowed


def test_behind_its_end_an_answer_has_nothing_but_ends(compile_bytes, mask_of, byte_vocabulary):
    matcher = compile_bytes(RegexFormat("a+")).matcher()
    assert matcher.accept([*b"aa", EOS, OTHER_EOS, *b"a"]) == 4
    assert matcher.is_complete and matcher.num_accepted == 4
    assert mask_of(matcher, byte_vocabulary) == {EOS, OTHER_EOS}
    assert matcher.num_valid([EOS, OTHER_EOS, *b"a"]) == 2
    matcher.rollback(3)
    assert matcher.accept([*b"a"]) == 0
    matcher.rollback(2)
    assert matcher.accept([*b"a"]) == 1


@given(st.data())
@settings(max_examples=12)
def test_a_rollback_is_as_if_the_tokens_had_never_come(grammar, mask_of, byte_vocabulary, data):
    matcher = grammar.matcher()
    taken = list(random_steps(matcher, mask_of, byte_vocabulary, data.draw(st.integers(0, 50)), 14))
    while matcher.num_accepted:
        version = data.draw(st.integers(0, matcher.num_accepted - 1))
        matcher.rollback(version)
        fresh = grammar.matcher()
        assert fresh.accept(taken[:version]) == version == matcher.num_accepted == fresh.num_accepted
        assert mask_of(matcher, byte_vocabulary) == mask_of(fresh, byte_vocabulary)
        assert (matcher.may_end, matcher.is_complete) == (fresh.may_end, fresh.is_complete)


@given(seed=st.integers(0, 50), garbage=st.lists(st.integers(-2, 300), max_size=4), num_kept=st.integers(0, 8))
@settings(max_examples=15)
def test_drafts_are_counted_as_they_would_be_accepted(grammar, mask_of, byte_vocabulary, seed, garbage, num_kept):
    taken = list(random_steps(grammar.matcher(), mask_of, byte_vocabulary, seed, 8))
    drafts = taken[:num_kept] + garbage
    matcher = grammar.matcher()
    before = mask_of(matcher, byte_vocabulary)
    num_valid = matcher.num_valid(drafts)
    assert matcher.num_accepted == 0 and mask_of(matcher, byte_vocabulary) == before
    assert matcher.accept(drafts) == num_valid >= min(num_kept, len(drafts))


def test_matchers_of_a_grammar_know_nothing_of_each_other(grammar, mask_of, byte_vocabulary):
    first, second = grammar.matcher(), grammar.matcher()
    before = mask_of(second, byte_vocabulary)
    list(random_steps(first, mask_of, byte_vocabulary, 3, 10))
    assert mask_of(second, byte_vocabulary) == before and second.num_accepted == 0


class Table:
    vocab_size = 3
    eos_token_ids = (2, 7)

    def token_bytes(self, token_id):
        return b"abc"[token_id : token_id + 1]

    def is_special(self, token_id):
        return False


def test_a_model_may_have_more_or_fewer_rows_than_its_tokenizer():
    assert make_vocabulary(Table(), 5).tokens == [b"a", b"b", b"c", b"", b""]
    assert make_vocabulary(Table(), 5).eos_token_ids == make_vocabulary(Table(), 5).special_ids == [2]
    with pytest.raises(ConfigError, match="eos_token_id"):
        make_vocabulary(Table(), 2)
