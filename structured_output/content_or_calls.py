"""Content of a form or tool calls, as the model chooses: which of both an answer is must be seen at its beginning."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import ContentOrCalls, OneFormat
from .backend import CompiledGrammar
from .either_matcher import EitherGrammar
from .lark_text import Markup
from .vocabulary import Vocabulary

_SPACES = ("", " ", "\n")
"""Before a call there may be white space, which is no content."""


class Compile(Protocol):
    """One form, behind markup."""

    def __call__(self, form: OneFormat, begin: str = "") -> CompiledGrammar: ...


def content_or_calls(form: ContentOrCalls, compile_one: Compile, vocabulary: Vocabulary) -> EitherGrammar:
    """Raises GrammarRefused if one of both cannot be compiled, or if there is content that would be read as a call."""
    content = compile_one(form.content)
    spellings = [_spelling([space + form.mark], vocabulary) for space in _SPACES]
    spellings.append(_spelling(Markup(vocabulary).pieces(form.mark), vocabulary))
    for spelling in spellings:
        if spelling is not None and content.matcher().num_valid(spelling) == len(spelling):
            raise GrammarRefused(
                f"an answer in this format may begin with {form.mark!r}, as a call of this model does: beside tools "
                "that the model may call or not nothing would tell them apart"
            )
    try:
        calls = compile_one(form.calls)
    except GrammarRefused as refused:
        raise GrammarRefused(f"tools: {refused.message}") from refused
    return EitherGrammar([compile_one(form.content, form.content_begin) if form.content_begin else content, calls])


def _spelling(pieces: Iterable[str | int], vocabulary: Vocabulary) -> list[int] | None:
    """Tokens of these texts and special tokens; None if there are none. Where one spelling is allowed all are."""
    spelling: list[int] = []
    for piece in pieces:
        if isinstance(piece, int):
            spelling.append(piece)
            continue
        found = _text_spelling(piece.encode(), vocabulary)
        if found is None:
            return None
        spelling += found
    return spelling


def _text_spelling(text: bytes, vocabulary: Vocabulary) -> list[int] | None:
    special = {*vocabulary.special_ids, *vocabulary.eos_token_ids}
    tokens = {
        data: token_id
        for token_id, data in enumerate(vocabulary.tokens)
        if data and token_id not in special and data in text
    }
    ways: list[list[int] | None] = [[], *[None] * len(text)]
    """By number of bytes: tokens that spell them."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            before, token_id = ways[start], tokens.get(text[start:end])
            if before is not None and token_id is not None:
                ways[end] = [*before, token_id]
                break
    return ways[-1]
