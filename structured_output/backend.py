"""The seam of the grammar backends: a constraint is compiled once, and each of its requests has a matcher of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..mailbox.messages.grammar import Constraint

Int32s = npt.NDArray[np.int32]


class Matcher(Protocol):
    """Follows one answer. Not thread-safe; two matchers share nothing that a caller could see.

    The tokens that end an answer count as tokens here: one is accepted where the text may end, and behind it only
    others of them are. So an answer that goes on behind its end (`ignore_eos`) still gets a mask that allows something.
    """

    @property
    def num_accepted(self) -> int:
        """Tokens taken so far. It is the version: a prefix of an answer has one state."""
        ...

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here and nothing else may follow; sure only once the mask has been filled."""
        ...

    def accept(self, token_ids: Sequence[int]) -> int:
        """Take tokens up to the first that the grammar does not allow; returns how many were taken.

        Raises GrammarRefused if the grammar has become too much work. The matcher is of no use then.
        """
        ...

    def rollback(self, version: int) -> None:
        """Back to the state in which `num_accepted` was `version`, at most what it is now."""
        ...

    def fill(self, mask: Int32s) -> None:
        """Which tokens may come next: bit i % 32 of word i // 32 for token i.

        mask: int32 [ceil(vocab_size / 32)], contiguous; all of it is written. Raises GrammarRefused as `accept` does.
        """
        ...

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """How many of these, from the first on, `accept` would take. Changes nothing."""
        ...


class CompiledGrammar(Protocol):
    """What a constraint was compiled to."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an answer. Takes microseconds."""
        ...


class GrammarBackend(Protocol):
    """Compiles constraints for one vocabulary."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """May take long and much memory: see `actors/sandbox.py`. Raises GrammarRefused, a sentence for the client."""
        ...
