"""A proposer whose drafts a device's steps have room for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...speculative.proposer import Int32s, ProposedDrafts, Proposer


class BoundedProposer:
    """Asks another for no more drafts than `room` in a step, and for none of rows that `can_draft` leaves out."""

    def __init__(self, proposer: Proposer, can_draft: Callable[[Int32s], NDArray[np.bool_]], room: int) -> None:
        self._proposer, self._can_draft, self._room = proposer, can_draft, room

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        self._proposer.follow(row, num_given_tokens, sharing_key)

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        each = self._room // max(1, rows.size)
        bounds = np.where(self._can_draft(rows), np.minimum(max_drafts, each), 0).astype(np.int32)
        return self._proposer.propose(rows, token_ids, num_known, bounds)

    def forget(self, rows: Int32s) -> None:
        self._proposer.forget(rows)
