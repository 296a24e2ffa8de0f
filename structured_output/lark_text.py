"""Pieces of grammars in Lark's notation, as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable

HEADER = '%llguidance {"no_forcing": true}\n'
"""Every spelling of a text in tokens is allowed, not only the tokenizer's own: what the masks allow and what a matcher
accepts are the same, and no tokenizer is called."""


def literal(text: str) -> str:
    """`text` as it is; for a text that is not empty."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7F")


def either(texts: Iterable[str]) -> str:
    """Alternatives, in brackets."""
    return f"({' | '.join(texts)})"
