"""The formats of answers as grammars in llguidance's variant of Lark."""

from __future__ import annotations

from typing import assert_never

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import (
    ChoiceFormat,
    GrammarFormat,
    JsonFormat,
    OneFormat,
    RegexFormat,
    StructureFormat,
    TagsFormat,
)
from .client_grammars import lark_of_client
from .json_text import json_rule
from .lark_text import HEADER, Markup, either, literal
from .regex_dialect import rust_regex
from .schema_check import checked_schema
from .structure_grammar import structure_grammar
from .tags_grammar import tags_grammar
from .vocabulary import Vocabulary


def lark_grammar(form: OneFormat, vocabulary: Vocabulary, begin: str = "") -> str:
    """A grammar with the rule `start`, behind the markup `begin`. Raises GrammarRefused."""
    if begin:
        inner = lark_grammar(form, vocabulary).removeprefix(HEADER)
        return f"{HEADER}start: {Markup(vocabulary).sequence(begin)} %lark {{\n{inner}\n}}"
    match form:
        case JsonFormat(schema):
            return f"{HEADER}start: {json_rule(checked_schema(schema))}"
        case RegexFormat(pattern):
            return f"{HEADER}start: /{rust_regex(pattern)}/"
        case ChoiceFormat(choices):
            return HEADER + _choice(choices)
        case GrammarFormat(grammar):
            return lark_of_client(grammar)
        case TagsFormat():
            return HEADER + tags_grammar(form, vocabulary)
        case StructureFormat(root):
            return HEADER + structure_grammar(root, vocabulary)
        case _:
            assert_never(form)


def _choice(choices: tuple[str, ...]) -> str:
    """One lexeme: then a choice that begins with another is no ambiguity."""
    if not choices:
        raise GrammarRefused("choice has no texts to choose from")
    if all(text == "" for text in choices):
        raise GrammarRefused("choice has the empty text alone")
    texts = [literal(text) for text in choices if text]
    body = either(dict.fromkeys(texts))
    return f"start: CHOICE\nCHOICE: {body}{'?' if '' in choices else ''}"
