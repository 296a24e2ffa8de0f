"""Prompt lookup: a row goes on as it did where its last n-gram occurred before.

The longest n-gram counts, and of its occurrences the latest. vLLM and transformers take the earliest one, which has
more known tokens behind it; here the continuation goes on periodically where known tokens end, so a loop is drafted to
its limit from its last turn. bench/results/2026-11-30-proposers.md has both.

Source: A. Saxena, "Prompt Lookup Decoding", 2023.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ..errors import ConfigError
from ..kernels.cpu.entries import look_up_ngrams
from ..kernels.cpu.packed_arguments import Packed
from .proposer import Int32s, ProposedDrafts
from .row_buffers import MAX_DRAFTS, RowBuffers


class NgramOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the method "ngram"."""

    min_ngram: Annotated[int, Meta(ge=1)] = 2
    """Shortest n-gram that is looked up [tokens]."""
    max_ngram: Annotated[int, Meta(ge=1)] = 16
    """Longest n-gram that is looked up [tokens]."""


class NgramProposer:
    """Keeps nothing between two calls. Raises ConfigError if min_ngram is above max_ngram."""

    def __init__(self, options: NgramOptions, max_num_seqs: int) -> None:
        if options.min_ngram > options.max_ngram:
            raise ConfigError(
                f"min_ngram is {options.min_ngram}, max_ngram {options.max_ngram}; min_ngram may be at most max_ngram"
            )
        self._limits = [Packed(value) for value in (options.min_ngram, options.max_ngram, MAX_DRAFTS)]
        self._buffers = RowBuffers(max_num_seqs)

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        pass

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """As `Proposer.propose`: all of max_drafts (256 at most), or none."""
        buffers = self._buffers
        buffers.fill(rows, num_known, max_drafts)
        token_rows = buffers.pack_token_ids(token_ids)
        return buffers.drafts(look_up_ngrams(buffers.packed, token_rows, *self._limits))

    def forget(self, rows: Int32s) -> None:
        pass
