"""What a proposer is: it follows the rows of one persistent batch and guesses what comes next in each."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]


class ProposedDrafts(NamedTuple):
    """Of n rows, in the order in which they were named."""

    counts: Int32s
    """int32 [n], each at most the row's max_drafts; 0 where there is nothing to guess from."""
    token_ids: Int32s
    """int32 [sum of counts]: the first row's drafts, then the second's."""
    probs: Float32s | None = None
    """float32 [sum of counts, vocab]: what each draft was drawn from, if the proposer draws and the rule of acceptance
    asks for it; None: it guesses."""


class Proposer(Protocol):
    """The same history of calls gives the same drafts. Not for several threads at once."""

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        """A request has come into a row of the batch. `num_given_tokens`: those that it brings, its prompt and what it
        had put out before a preemption; what comes behind them is its output. `sharing_key`: only requests of the same
        key may be drafted from each other's output; None for one that shares with nobody.

        A proposer that looks into nothing but the row itself does nothing here, and a row that was never announced is
        proposed for, but shares with nobody."""

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """rows: int32 [n], distinct rows of the batch; token_ids: int32 [max_num_seqs, max_model_len + 1], the batch's
        own array, which is only read; num_known: int32 [max_num_seqs], how many tokens of each row of the batch are
        valid; max_drafts: int32 [n], at least 0. Until a row is forgotten, tokens that were known stay what they are.
        """

    def forget(self, rows: Int32s) -> None:
        """int32 [n]: rows that were given to other requests or cleared. What is kept of them goes, but for output that
        others of the same key are drafted from: it goes when newer output takes its place."""
