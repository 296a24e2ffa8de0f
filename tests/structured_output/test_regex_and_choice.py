"""Regular expressions and choices, against `re` and against the texts themselves."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from callboard.errors import GrammarRefused
from callboard.mailbox.messages.grammar import ChoiceFormat, RegexFormat
from callboard.structured_output.regex_dialect import rust_regex

EXPRESSIONS = [
    "^a$", "a|b$", "^a|b", "(^a)b", "(^|a)b", "a(b|$)", "a.b", r"[^\s]a", r"\Sx", "a{2,3}?", "[a-c&&b]", r"[a\-c]",
    "x*", "(a|b)*abb", r"\w\W", r"a\.b", "[[]a]", "a{", "{a}", "^(a|b)+$", "$", "^", "a||b", "(?:a)(?P<n>b)", "()",
    "(a*)*", r"\/", "[/]", "a/b", r"\x61\u0062", r"[\d-]", "[-a]", "[a-]", r"[^a-c\n]", "(a|ab)(c|bc)", r"\A[ab]\Z",
    r"[\w-]a", "é", r"[à-ï]", r"\s", r"\S", r"\D", r"a\tb", "[.]", "[~&]a", "\x7f",
]  # fmt: skip
TEXTS = ["".join(text) for size in range(4) for text in itertools.product("abcx.\n-[", repeat=size)]
TEXTS += ["abb", "aabb", "é", "ï", "\t", "\x1c", "\ufeff", "\x85", "a\tb", "\u0663", "{a}", "/", "\x7f", "~a", "&a"]


def found(function, pattern, text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return bool(function(pattern, text))


@pytest.mark.parametrize("pattern", EXPRESSIONS)
def test_an_expression_matches_what_python_says(pattern, compile_bytes, allows):
    grammar = compile_bytes(RegexFormat(pattern))
    for text in TEXTS:
        got, expected = allows(grammar, text), found(re.fullmatch, pattern, text)
        assert got <= expected, f"{text!r} is let through"
        in_doubt = re.search(r"[\x1c\ufeff\x85\u0663]", text) or "\u2028" in text
        assert got == expected or in_doubt, f"{text!r} is not let through"


@pytest.mark.parametrize("pattern", ["^a", "b$", "a|b", "^a|b", "^(a|b)$", "ab", "x", "^$", r"\.", "(^a)|(b$)"])
def test_a_pattern_of_a_schema_is_searched_for(pattern, compile_bytes, allows):
    grammar = compile_bytes({"type": "string", "pattern": pattern})
    for text in TEXTS:
        if text.isprintable():
            assert allows(grammar, f'"{text}"') == found(re.search, pattern, text), text


@given(
    pattern=st.recursive(
        st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\.", "x?"]),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
                lambda pair: f"(?:{pair[0]}){pair[1]}"
            ),
        ),
        max_leaves=6,
    )
)
@settings(max_examples=25)
def test_any_expression_matches_what_python_says(pattern, compile_bytes, allows):
    try:
        grammar = compile_bytes(RegexFormat(pattern))
    except GrammarRefused:
        assume(False)
    for text in TEXTS[:140]:
        assert allows(grammar, text) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("[.*", "without its ']'"), ("(?=a)b", "looking ahead"), ("(?<!a)b", "behind"), (r"(a)\1", "back references"),
        (r"\bfoo", "boundaries"), ("(?i)a", "(?i)"), ("a**", "quantifier"), ("*a", "nothing to repeat"),
        ("a{,3}", "'{,'"), ("[]a]", "empty class"), ("[b-a]", "range"), ("\\", "backslash"), (r"\xZ", "hexadecimal"),
        (r"\ud83d", "half"), (r"\q", r"\q"), ("(a", "unclosed"), ("a)", "unopened"), ("a{2,1}", "repetition"),
        (r"\p{Nope}", "Nope"), ("a++", "quantifier"),
    ],
)  # fmt: skip
def test_what_is_malformed_or_not_regular_is_refused_by_name(pattern, word, compile_bytes):
    with pytest.raises(GrammarRefused, match=re.escape(word)):
        compile_bytes(RegexFormat(pattern))


@given(st.text(max_size=30))
@settings(max_examples=100)
def test_any_text_is_rewritten_or_refused(pattern):
    with contextlib.suppress(GrammarRefused):
        rust_regex(pattern)


CHOICES = [("yes", "no"), ("a", "ab", "abc"), ("", "a"), ("b\n", '"', "\\", "\x7f", "\x00"), ("🫠", "é", "true")]


@pytest.mark.parametrize("choices", CHOICES)
def test_a_choice_is_one_of_its_texts(choices, compile_bytes, allows, mask_of, byte_vocabulary):
    grammar = compile_bytes(ChoiceFormat(choices))
    for text in {*choices, *(other[:-1] for other in choices), *(f"{other}a" for other in choices), "x", ""}:
        assert allows(grammar, text) == (text in choices), text
    for text in choices:  # byte by byte, what the mask allows is what goes on with some choice
        matcher = grammar.matcher()
        for position in range(len(text.encode()) + 1):
            begun = text.encode()[:position]
            rests = [other.encode()[position:] for other in choices if other.encode().startswith(begun)]
            words = [i for i in range(256, 262) if byte_vocabulary.tokens[i] and i not in byte_vocabulary.special_ids]
            expected = {rest[0] for rest in rests if rest}
            expected |= {i for i in words if any(rest.startswith(byte_vocabulary.tokens[i]) for rest in rests)}
            expected |= set(byte_vocabulary.eos_token_ids) if b"" in rests else set()
            assert mask_of(matcher, byte_vocabulary) == expected
            if position < len(text.encode()):
                assert matcher.accept([text.encode()[position]]) == 1


def test_a_choice_of_nothing_is_refused(compile_bytes):
    for choices in ((), ("",)):
        with pytest.raises(GrammarRefused, match="choice"):
            compile_bytes(ChoiceFormat(choices))


def test_length_and_pattern_hold_together(compile_bytes, allows):
    schema = {"type": "string", "pattern": "^[a-z]+$", "minLength": 5, "maxLength": 7}
    grammar = compile_bytes(schema)
    for text in ["abcd", "abcde", "abcdefg", "abcdefgh", "ABCDE", "abc1e", ""]:
        assert allows(grammar, f'"{text}"') == jsonschema.Draft202012Validator(schema).is_valid(text)
