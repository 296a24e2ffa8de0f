"""The formats of answers as grammars in llguidance's variant of Lark."""

from __future__ import annotations

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import (
    ChoiceFormat,
    JsonFormat,
    OutputFormat,
    RegexFormat,
)
from .json_text import json_rule
from .lark_text import HEADER, either, literal
from .regex_dialect import rust_regex
from .schema_check import checked_schema


def lark_grammar(form: OutputFormat) -> str:
    """A grammar with the rule `start`. Raises GrammarRefused."""
    match form:
        case JsonFormat(schema):
            return f"{HEADER}start: {json_rule(checked_schema(schema))}"
        case RegexFormat(pattern):
            return f"{HEADER}start: /{rust_regex(pattern)}/"
        case ChoiceFormat(choices):
            return HEADER + _choice(choices)
    raise GrammarRefused(f"{type(form).__name__} is not supported")


def _choice(choices: tuple[str, ...]) -> str:
    """One lexeme: then a choice that begins with another is no ambiguity."""
    if not choices:
        raise GrammarRefused("choice has no texts to choose from")
    if all(text == "" for text in choices):
        raise GrammarRefused("choice has the empty text alone")
    texts = [literal(text) for text in choices if text]
    body = either(dict.fromkeys(texts))
    return f"start: CHOICE\nCHOICE: {body}{'?' if '' in choices else ''}"
