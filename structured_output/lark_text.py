"""Pieces of grammars in Lark's notation, as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ..errors import GrammarRefused
from .vocabulary import Vocabulary

HEADER = '%llguidance {"no_forcing": true}\n'
"""Every spelling of a text in tokens is allowed, not only the tokenizer's own: what the masks allow and what a matcher
accepts are the same, and no tokenizer is called."""

ANYTHING = "/(?s:.*)/"


def literal(text: str) -> str:
    """`text` as it is; for a text that is not empty."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7F")


def either(texts: Iterable[str]) -> str:
    """Alternatives, in brackets."""
    return f"({' | '.join(texts)})"


def without(texts: Iterable[str]) -> str:
    """The body of a terminal: any text that none of `texts` is in; they are not empty."""
    banned = "".join(f" & ~({ANYTHING} {literal(text)} {ANYTHING})" for text in dict.fromkeys(texts))
    return f"{ANYTHING}{banned}"


class Markup:
    """Texts of a model's markup, in which special tokens of its vocabulary stand for themselves."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._special = vocabulary.special_texts()
        self._ends = [vocabulary.tokens[token_id].decode("utf-8", "replace") for token_id in vocabulary.eos_token_ids]
        longest_first = sorted(filter(None, (*self._special, *self._ends)), key=len, reverse=True)
        self._splits = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def pieces(self, text: str) -> list[str | int]:
        """Texts, none empty, and ids of special tokens. Raises GrammarRefused for what ends an answer."""
        parts = [part for part in self._splits.split(text) if part]
        for part in parts:
            if part in self._ends:
                raise GrammarRefused(f"{part!r} ends an answer of this model, so it can be no part of one")
        return [self._special.get(part, part) for part in parts]

    def sequence(self, text: str) -> str:
        """`text` as pieces of a rule; empty for an empty text."""
        return joined(self.pieces(text))

    def last_sequence(self, text: str) -> str:
        """`text` as pieces of a rule, without what ends the answer anyway if it ends with that."""
        for end in self._ends:
            text = text.removesuffix(end)
        return self.sequence(text)


def joined(pieces: Iterable[str | int]) -> str:
    """Pieces of a rule."""
    return " ".join(f"<[{piece}]>" if isinstance(piece, int) else literal(piece) for piece in pieces)
