"""Tokens found by their bytes, and sets of tokens as masks."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from .backend import Int32s
from .vocabulary import Vocabulary


class TokenIndex:
    """Of the tokens that have bytes, special ones with their text included and the ends of answers left out."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._left_out = frozenset(vocabulary.eos_token_ids)
        self.special = frozenset(vocabulary.special_ids) - self._left_out
        ids = [token_id for token_id, data in enumerate(self._tokens) if data and token_id not in self._left_out]
        self.text_ids = [token_id for token_id in ids if token_id not in self.special]
        self._sorted = sorted((self._tokens[token_id], token_id) for token_id in ids)
        self._is_text = np.zeros(vocabulary.num_mask_words * 32, np.bool_)
        self._is_text[self.text_ids] = True

    def token_bytes(self, token_id: int) -> bytes:
        """Empty for what is no token, or ends an answer."""
        is_token = 0 <= token_id < len(self._tokens) and token_id not in self._left_out
        return self._tokens[token_id] if is_token else b""

    def equal_to(self, data: bytes) -> list[int]:
        """Tokens of exactly these bytes."""
        return [token_id for token_id in self.beginning_with(data) if len(self._tokens[token_id]) == len(data)]

    def beginning_with(self, data: bytes) -> list[int]:
        """Tokens that begin with these bytes, those of exactly these included."""
        found = []
        for index in range(bisect_left(self._sorted, (data, -1)), len(self._sorted)):
            token, token_id = self._sorted[index]
            if not token.startswith(data):
                break
            found.append(token_id)
        return found

    def mask(self, token_ids: list[int]) -> Int32s:
        """int32 [num_mask_words] with the bits of these tokens."""
        is_allowed = np.zeros_like(self._is_text)
        is_allowed[token_ids] = True
        return _packed(is_allowed)

    def text_mask(self, but: dict[int, bool]) -> Int32s:
        """int32 [num_mask_words] with the bits of all text tokens, but of these tokens as is said."""
        is_allowed = self._is_text.copy()
        is_allowed[list(but)] = list(but.values())
        return _packed(is_allowed)


def _packed(is_allowed: npt.NDArray[np.bool_]) -> Int32s:
    return np.packbits(is_allowed, bitorder="little").view("<i4")
