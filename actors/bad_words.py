"""Words that are not to be made, as sequences of token ids."""

from __future__ import annotations

from ..errors import InvalidRequest
from ..text import Tokenizer

MAX_CHARS = 1 << 16
"""Of all words of a request together."""


def bad_token_ids(tokenizer: Tokenizer, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word as it stands at the beginning of a text, and behind a space; every sequence once.

    Spaces at the beginning of a word make no difference. A word can be spelt with other tokens than these, too: what
    is kept off is the usual spelling, as in vLLM and transformers.
    Raises InvalidRequest, naming the word, for one that gives no tokens, and for too much text.
    """
    num_chars = sum(map(len, words))
    if num_chars > MAX_CHARS:
        raise InvalidRequest(
            f"bad_words has {num_chars:,} characters, the limit is {MAX_CHARS:,} for all words together",
            param="bad_words",
        )
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip() or word
        for spelling in (bare, " " + bare):
            ids = tuple(tokenizer.encode(spelling, add_special_tokens=False)) if bare else ()
            if not ids:
                raise InvalidRequest(f"bad_words: {word[:80]!r} gives no tokens", param="bad_words")
            found[ids] = None
    return tuple(found)
