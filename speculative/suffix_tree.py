"""Suffix decoding: a row goes on as most of the places do whose tokens match its end.

**What is drafted.** Of the row's own earlier tokens, those places count (occurrences) that match its last
`min_match` tokens, the latest `max_occurrences` of them, each with the length of its match, up to `max_match`. For the
longest m that there is, and for each shorter one that at least twice as many match as the last m tried, the occurrences
that match at least so far vote: the most frequent next token is drafted, then
the most frequent one behind it among those that had it, and so on: the path that a suffix tree's counts give. A draft's
probability is the product of count(child) / count(parent) on the way; the row's end is itself one that passed the first
parent, as it is in a tree, so a single occurrence is believed by one half. The path ends where the probability falls
below `min_probability`, at `spec_factor` * m tokens, or at max_drafts. Its score is the sum of its probabilities: the
number of tokens that may be expected to be accepted. The path of the highest score is proposed; of equal ones that of
the longer match. Frequent tokens that are equally frequent: that of the latest occurrence. Where the row's own known
tokens end, an occurrence goes on with the drafts, so that a pattern repeats.

**What others have put out** (`max_cached_tokens`, the oldest tokens go first) is searched in the same way, from
`min_shared_match` tokens on, and proposed if its score is higher. It is shared by key (tenant, cache salt): what
another key's requests have put out is never drafted, so nobody can find it out by how fast a guess of it is answered.
Keys share the space: how much others put out can be felt in how early one's own output goes, as in a prefix cache. What
is put out in a request's last step may be missing, for nobody proposes behind it.

**What it costs.** No tree is built: a new token is a hash and two stores, and counting is done for the occurrences of
one n-gram when drafts are wanted. So forgetting a row is two stores, and memory is fixed at the start: 12 to 20 bytes
for each token that the batch has room for (as far as rows grow: pages that nothing is put into are none), 48 for each
cached one.

Source: Oliaro, Jia, Campos, Qiao, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024,
arXiv 2411.04975, whose scores these are; it keeps whole requests and all occurrences.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from ..errors import ConfigError
from ..kernels.cpu.entries import draft_suffixes
from ..kernels.cpu.packed_arguments import Packed
from .proposer import Int32s, ProposedDrafts
from .row_buffers import MAX_DRAFTS, RowBuffers
from .suffix_arrays import make_own_tokens, make_shared_tokens, make_workspace


class SuffixOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Of the method "suffix"."""

    min_match: Annotated[int, Meta(ge=1, le=16)] = 2
    """Shortest end of a row that is looked for in the row itself [tokens]."""
    min_shared_match: Annotated[int, Meta(ge=1, le=16)] = 3
    """Shortest end of a row that is looked for in what other requests have put out [tokens]."""
    max_match: Annotated[int, Meta(ge=1, le=256)] = 24
    """Matches are not measured further [tokens]."""
    max_occurrences: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Latest occurrences that are counted."""
    spec_factor: Annotated[float, Meta(gt=0.0, le=16.0)] = 1.0
    """Drafts for each token that matches."""
    min_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """A draft that is less probable ends the path."""
    max_cached_tokens: Annotated[int, Meta(ge=0, le=1 << 28)] = 1 << 18
    """Output of recent requests that is kept for requests of the same key [tokens]; 0 for none, else the largest power
    of two that is not above it."""


class SuffixStatistics(Struct, frozen=True):
    """At one moment."""

    num_row_tokens: int
    """Tokens of rows that are chained."""
    num_cached_tokens: int
    """Tokens of output that requests of the same key may be drafted from."""
    memory_bytes: int
    """Of the arrays, whatever is in them; a page that nothing was put into takes none."""


class SuffixProposer:
    """Raises ConfigError if min_match or min_shared_match is above max_match."""

    def __init__(self, options: SuffixOptions, max_num_seqs: int, max_model_len: int) -> None:
        for name in ("min_match", "min_shared_match"):
            if (value := getattr(options, name)) > options.max_match:
                raise ConfigError(f"{name} is {value}, max_match {options.max_match}; {name} may be at most max_match")
        self._options = options
        self._buffers = RowBuffers(max_num_seqs)
        self._own = make_own_tokens(max_num_seqs, max_model_len + 1)
        self._shared = make_shared_tokens(max_num_seqs, 1 << (max(options.max_cached_tokens, 1).bit_length() - 1))
        self._work = make_workspace(
            options.max_occurrences, options.max_match, MAX_DRAFTS, options.spec_factor, options.min_probability
        )
        state = (self._own, self._shared, self._work, options.min_match, options.min_shared_match)
        self._packed_state = [Packed(part) for part in state]

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        """As `Proposer.follow`."""
        self._forget_own(row)
        shared = self._shared
        shared.row_keys[row] = 0
        if sharing_key is not None and self._options.max_cached_tokens > 0:
            shared.row_keys[row] = _key(sharing_key)
        shared.row_starts[row] = shared.row_taken[row] = num_given_tokens
        shared.row_last[row] = 0

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """As `Proposer.propose`. All rows are taken in before the first is drafted for."""
        buffers = self._buffers
        assert token_ids.shape[1] <= self._own.previous.shape[1], "as many places as the batch that it was made for"
        buffers.fill(rows, num_known, max_drafts)
        token_rows = buffers.pack_token_ids(token_ids)
        return buffers.drafts(draft_suffixes(buffers.packed, token_rows, *self._packed_state))

    def forget(self, rows: Int32s) -> None:
        """As `Proposer.forget`."""
        for row in rows.tolist():
            self._forget_own(row)
            self._shared.row_keys[row] = self._shared.row_last[row] = 0

    def statistics(self) -> SuffixStatistics:
        own, shared = self._own, self._shared
        return SuffixStatistics(
            num_row_tokens=int(own.num_taken.sum()),
            num_cached_tokens=min(int(shared.next_serial[0]) - 1, len(shared.ring)),
            memory_bytes=sum(array.nbytes for part in (own, shared, self._work) for array in part),
        )

    def check_integrity(self) -> None:
        """Of the shared tokens: each that lies between two others is the one behind the first and before the second."""
        next_serial, capacity = int(self._shared.next_serial[0]), len(self._shared.ring)
        oldest = max(next_serial - capacity, 1)
        serials = np.arange(oldest, next_serial)
        ring = self._shared.ring
        _, keys, before, after, previous = ring[serials % capacity].T
        behind = ring[after % capacity]
        has_after, has_before = after > 0, before >= oldest
        assert (behind[has_after, 2] == serials[has_after]).all(), "it is before what is after it"
        assert (ring[before % capacity, 3][has_before] == serials[has_before]).all(), "it is after what is before it"
        assert (behind[has_after, 1] == keys[has_after]).all(), "a request has one key"
        assert (previous < serials).all(), "chains lead back"

    def _forget_own(self, row: int) -> None:
        """It has outgrown no buckets at all: its next tokens begin another generation."""
        self._own.num_taken[row], self._own.masks[row] = 0, -1


def _key(sharing_key: str) -> int:
    """63 bits, never 0."""
    return int.from_bytes(blake2b(sharing_key.encode(), digest_size=8).digest(), "little") >> 1 | 1
