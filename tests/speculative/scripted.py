"""Proposers of known quality."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from callboard.speculative.proposer import Int32s, ProposedDrafts


class ScriptedProposer:
    """Knows how each prompt goes on, and guesses each token right with `share`; else it is the next id. What it guesses
    at a place is always the same."""

    def __init__(self, texts: Mapping[tuple[int, ...], Sequence[int]], share: float, vocab_size: int) -> None:
        """texts: prompt -> what is generated behind it."""
        self._texts, self._share, self._vocab_size = texts, share, vocab_size
        self.num_asked = 0

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        """Nothing to keep."""

    def forget(self, rows: Int32s) -> None:
        """Nothing was kept."""

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        self.num_asked += 1
        drafts = [
            self._guess(token_ids[row, : num_known[row]].tolist())[:most]
            for row, most in zip(rows.tolist(), max_drafts.tolist(), strict=True)
        ]
        counts = np.array([len(guesses) for guesses in drafts], np.int32)
        return ProposedDrafts(counts, np.array([token for guesses in drafts for token in guesses], np.int32))

    def _guess(self, known: list[int]) -> list[int]:
        for prompt, text in self._texts.items():
            if tuple(known) == (*prompt, *text[: len(known) - len(prompt)]) and len(known) >= len(prompt):
                chance = random.Random(f"{prompt} {len(known)}")
                rest = text[len(known) - len(prompt) :]
                return [token if chance.random() < self._share else (token + 1) % self._vocab_size for token in rest]
        return []


class StubbornProposer:
    """Guesses the same tokens everywhere."""

    def __init__(self, guesses: Sequence[int]) -> None:
        self._guesses = guesses

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        """Nothing to keep."""

    def forget(self, rows: Int32s) -> None:
        """Nothing was kept."""

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        counts = np.minimum(max_drafts, len(self._guesses)).astype(np.int32)
        parts = [self._guesses[:count] for count in counts.tolist()]
        return ProposedDrafts(counts, np.array([token for part in parts for token in part], np.int32))


class PositionalProposer:
    """Guesses the same tokens behind every prompt of one length, whatever came so far."""

    def __init__(self, num_prompt_tokens: int, guesses: Sequence[int]) -> None:
        """guesses: of the first token behind the prompt, of the second, ..."""
        self._num_prompt_tokens, self._guesses = num_prompt_tokens, guesses

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        """Nothing to keep."""

    def forget(self, rows: Int32s) -> None:
        """Nothing was kept."""

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        drafts = [
            self._guesses[known - self._num_prompt_tokens :][:most]
            for known, most in zip(num_known[rows].tolist(), max_drafts.tolist(), strict=True)
        ]
        counts = np.array([len(guesses) for guesses in drafts], np.int32)
        return ProposedDrafts(counts, np.array([token for guesses in drafts for token in guesses], np.int32))
