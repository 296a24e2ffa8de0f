"""An answer that one of several grammars takes, whichever the model chooses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .backend import CompiledGrammar, Int32s, Matcher


class EitherGrammar:
    """The union of the grammars' languages. It is made of their matchers and not in one text: a lexer would take the
    beginnings of one for those of another."""

    def __init__(self, grammars: Sequence[CompiledGrammar]) -> None:
        assert grammars
        self._grammars = grammars

    def matcher(self) -> EitherMatcher:
        return EitherMatcher([grammar.matcher() for grammar in self._grammars])


class EitherMatcher:
    """See `Matcher`. A matcher that has taken all tokens is in; one that did not take a token stays behind where it
    was, and is in again when a rollback comes to there."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self._matchers = matchers
        self._num_accepted = 0

    @property
    def num_accepted(self) -> int:
        return self._num_accepted

    @property
    def may_end(self) -> bool:
        return any(matcher.may_end for matcher in self._those_in())

    @property
    def is_complete(self) -> bool:
        return all(matcher.is_complete for matcher in self._those_in())

    def _those_in(self) -> list[Matcher]:
        return [matcher for matcher in self._matchers if matcher.num_accepted == self._num_accepted]

    def accept(self, token_ids: Sequence[int]) -> int:
        num_taken = max(matcher.accept(token_ids) for matcher in self._those_in())
        self._num_accepted += num_taken
        return num_taken

    def rollback(self, version: int) -> None:
        assert 0 <= version <= self._num_accepted, "a rollback goes back"
        for matcher in self._matchers:
            if matcher.num_accepted > version:
                matcher.rollback(version)
        self._num_accepted = version

    def fill(self, mask: Int32s) -> None:
        first, *others = self._those_in()
        first.fill(mask)
        if others:
            more = np.empty_like(mask)
            for matcher in others:
                matcher.fill(more)
                mask |= more

    def num_valid(self, token_ids: Sequence[int]) -> int:
        return max(matcher.num_valid(token_ids) for matcher in self._those_in())
