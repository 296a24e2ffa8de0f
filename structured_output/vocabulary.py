"""What a grammar has to know of a tokenizer: the bytes of each token, and which tokens are no text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec
import numpy as np

from ..errors import ConfigError
from .backend import Int32s


class TokenTable(Protocol):
    """The part of `text.Tokenizer` that is needed here."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Vocabulary(msgspec.Struct, frozen=True, array_like=True):
    """Of a model. Goes as a message to the processes that compile."""

    tokens: list[bytes]
    """By token id, one for each of the model's logits; of a special token its text; empty where there is no token (a
    model may be padded beyond its tokenizer): such ids are never allowed."""
    special_ids: list[int]
    """Marks and not text, in ascending order: never allowed but where a grammar names one."""
    eos_token_ids: list[int]
    """What ends an answer; they are special, whatever else is said of them."""

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def num_mask_words(self) -> int:
        """int32 words of a mask."""
        return -(-len(self.tokens) // 32)

    def mask(self, token_ids: Iterable[int]) -> Int32s:
        """int32 [num_mask_words] with the bits of these tokens."""
        words = np.zeros(self.num_mask_words, np.uint32)
        for token_id in token_ids:
            words[token_id // 32] |= 1 << token_id % 32
        return words.view(np.int32)

    def special_texts(self) -> dict[str, int]:
        """Special tokens by their text, the ends of answers left out."""
        ends = set(self.eos_token_ids)
        return {
            self.tokens[token_id].decode("utf-8", "replace"): token_id
            for token_id in reversed(self.special_ids)  # of two with one text the first counts
            if token_id not in ends and self.tokens[token_id]
        }


def make_vocabulary(tokenizer: TokenTable, vocab_size: int, more_eos_token_ids: Iterable[int] = ()) -> Vocabulary:
    """For a model with `vocab_size` logits, which may be more or fewer than the tokenizer has tokens.
    `more_eos_token_ids`: ends of answers that the model names beside those of its tokenizer.

    Raises ConfigError for a model without a token that ends an answer.
    """
    eos_token_ids = sorted({i for i in (*tokenizer.eos_token_ids, *more_eos_token_ids) if 0 <= i < vocab_size})
    if not eos_token_ids:
        raise ConfigError(
            "the model names no token that ends an answer, so no answer could be held to a grammar",
            advice="leave the grammar actor out of the topology, or correct eos_token_id in the model's files",
        )
    special = {token_id for token_id in range(vocab_size) if tokenizer.is_special(token_id)} | set(eos_token_ids)
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
    return Vocabulary(tokens, sorted(special), eos_token_ids)
