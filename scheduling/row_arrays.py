"""What changes at every token of a running request, as arrays over the rows: a step of decodes is numpy, no loop.

A request that takes a row puts its numbers here, and takes them back when it leaves. Of its tokens the arrays keep the
block that is not full yet; a full one goes to the request, which is the only Python work that decoding costs: once a
block, not once a token.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
RowIndexes = npt.NDArray[np.intp]
"""Rows as numpy wants them: with an index of another type each access would convert it first."""

R = TypeVar("R")
"""What is in a row: a request."""

MAX_END_IDS = 4
"""Tokens that end a request, compared in numpy; a request with more of them is watched."""
NO_TOKEN = -1
ZERO: Int32s = np.zeros((), np.int32)
ONE: Int32s = np.ones((), np.int32)
"""Operands of numpy, which takes longer to understand a Python number than to add it to a batch."""


FIELDS = (
    "num_computed",
    "num_places",
    "next_full",
    "num_expected",
    "num_tokens",
    "max_total",
    "tail_at",
    "is_watched",
    *(f"end_id_{index}" for index in range(MAX_END_IDS)),
)
"""Of `RowArrays.table`: first what a plan asks for, then, overlapping, what a result does."""
PLAN_FIELDS = slice(FIELDS.index("num_computed"), FIELDS.index("max_total") + 1)
PLAN_FIELD = {name: index for index, name in enumerate(FIELDS[PLAN_FIELDS])}
"""Where each stands among them."""
STEADY_FIELDS = slice(0, FIELDS.index("is_watched") + 1)
RESULT_FIELDS = slice(FIELDS.index("num_tokens"), len(FIELDS))


class RowArrays(Generic[R]):
    """Rows 0 .. max_num_seqs - 1. The lowest free one is taken, so that a small batch stays dense.

    All arrays are [max_num_seqs] unless said; of a free row only `run`, `num_drafts`, `num_ahead` and `is_prefilling`
    mean anything, and are 0.
    """

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self.max_num_seqs, self.block_size = max_num_seqs, block_size
        self.run: Int64s = np.zeros(max_num_seqs, np.int64)
        self.table: Int32s = np.zeros((len(FIELDS), max_num_seqs), np.int32)
        """[len(FIELDS), max_num_seqs]: the arrays that a steady step reads, so that it can gather them at once."""
        self.num_tokens = self._field("num_tokens")
        """Known tokens, prompt and output."""
        self.num_computed = self._field("num_computed")
        """Positions that plans made so far cover, those in flight included, but for drafts."""
        self.num_expected = self._field("num_expected")
        """Known tokens, and one for each plan in flight that yields any."""
        self.num_places = self._field("num_places")
        """Positions that its blocks hold."""
        self.next_full = self._field("next_full")
        """Tokens with which its next block is full and can be found by its key; those before it can be already."""
        self.max_total = self._field("max_total")
        """Tokens with which the request ends."""
        self.is_watched = self._field("is_watched")
        """1: each of its tokens is looked at in Python."""
        self.tail_at = self._field("tail_at")
        """Place of the next token in `tail`: num_tokens % block_size."""
        self.end_ids: Int32s = self.table[FIELDS.index("end_id_0") :]
        """[MAX_END_IDS, max_num_seqs]: EOS and stop ids; NO_TOKEN fills up."""
        self.num_sent: Int32s = np.zeros(max_num_seqs, np.int32)
        """Known tokens that have left for the tokenizer, or stand in an unsent delta; the prompt counts as sent."""
        self.num_drafts: Int32s = np.zeros(max_num_seqs, np.int32)
        """Drafts behind the last known token, to be planned."""
        self.num_with_drafts = 0
        """Rows that have some."""
        self.num_ahead: Int32s = np.zeros(max_num_seqs, np.int32)
        """Drafts that plans in flight may verify. `num_computed` and `num_expected` count none of them: by so many
        positions the row may stand further."""
        self.num_all_ahead = 0
        """Of all rows together."""
        self.is_prefilling: Bools = np.zeros(max_num_seqs, np.bool_)
        """No plan of its run has come to its last known token yet."""
        self.num_prefilling = 0
        """Rows of which that is true."""
        self.is_constrained: Bools = np.zeros(max_num_seqs, np.bool_)
        """It draws under a grammar: a step may give it no token."""
        self.tenant: Int32s = np.zeros(max_num_seqs, np.int32)
        """Index of its tenant's counter."""
        self.tail_size: Int32s = np.array(block_size, np.int32)
        """[]"""
        self.tail: Int32s = np.zeros((max_num_seqs, block_size), np.int32)
        """[max_num_seqs, block_size]: the token at position p is at p % block_size, from the last block border on."""
        self.requests: list[R | None] = [None] * max_num_seqs
        self._free = list(range(max_num_seqs))
        self._removed: list[int] = []
        self._in_order: RowIndexes | None = None
        self._by_rank: RowIndexes | None = None
        self._requests_of: tuple[RowIndexes, list[R]] | None = None
        """Of one of these two, the requests."""
        self._bytes_of: tuple[RowIndexes, bytes, bytes] | None = None
        self.num_changes = 0
        """Rows taken and given back."""

    @property
    def num_free(self) -> int:
        """Rows that can be taken now."""
        return len(self._free)

    def take(self, request: R, run: int) -> int:
        """The lowest free row. The caller fills it in."""
        row = heappop(self._free)
        self.requests[row] = request
        self.run[row] = run
        self._forget_order()
        return row

    def give_back(self, row: int) -> None:
        """Free `row`; the next plan tells the worker, before it may place another request there."""
        self.requests[row] = None
        self.run[row] = 0
        self.set_drafts(row, 0)
        self.num_all_ahead -= int(self.num_ahead[row])
        self.num_ahead[row] = 0
        self.set_prefilling(row, False)
        heappush(self._free, row)
        self._removed.append(row)
        self._forget_order()

    def set_drafts(self, row: int, num_drafts: int) -> None:
        """So many drafts of the row are to be planned."""
        self.num_with_drafts += (num_drafts > 0) - int(self.num_drafts[row] > 0)
        self.num_drafts[row] = num_drafts

    def expect_drafts(self, rows: RowIndexes, num_drafts: Int32s) -> None:
        """A plan may verify so many of each of `rows`; int32 [n]."""
        self.num_ahead[rows] += num_drafts
        self.num_all_ahead += int(np.add.reduce(num_drafts))

    def settle_drafts(self, rows: RowIndexes, num_drafts: Int32s, num_accepted: Int32s) -> None:
        """Of so many of each of `rows` that a plan might have verified so many were accepted; int32 [n]. Plans in
        flight may compute less than they say where that brings a row to its end: the last token is not computed."""
        self.num_ahead[rows] -= num_drafts
        self.num_all_ahead -= int(np.add.reduce(num_drafts))
        self.num_computed[rows] = np.minimum(self.num_computed[rows] + num_accepted, self.max_total[rows] - ONE)
        self.num_expected[rows] += num_accepted

    def set_prefilling(self, row: int, is_prefilling: bool) -> None:
        """Whether plans of the row have still to come to its last known token."""
        self.num_prefilling += is_prefilling - int(self.is_prefilling[row])
        self.is_prefilling[row] = is_prefilling

    def in_order(self) -> RowIndexes:
        """[num_running] rows in use, by run: as they were taken. Read only."""
        if self._in_order is None:
            used = np.flatnonzero(self.run)
            self._in_order = used[np.argsort(self.run[used])]
        return self._in_order

    def by_rank(self, rank: Callable[[R], tuple[int, ...]]) -> RowIndexes:
        """[num_running] rows in use, the lowest rank first; ranks do not change while requests run. Read only."""
        if self._by_rank is None:
            rows = self.in_order()
            ranks = [rank(request) for request in self.of(rows)]
            self._by_rank = rows[np.array(sorted(range(len(rows)), key=ranks.__getitem__), np.intp)]
        return self._by_rank

    def of(self, rows: RowIndexes) -> list[R]:
        """The requests in rows that are in use; a list that nobody changes."""
        if rows is not self._in_order and rows is not self._by_rank:
            return self._of(rows)
        if self._requests_of is None or self._requests_of[0] is not rows:
            self._requests_of = rows, self._of(rows)
        return self._requests_of[1]

    def bytes_of(self, rows: RowIndexes) -> tuple[bytes, bytes]:
        """(int32 rows, int64 runs) of rows that are in use, as a plan tells them."""
        last = self._bytes_of
        if last is None or last[0] is not rows:
            last = self._bytes_of = (rows, rows.astype(np.int32).tobytes(), self.run[rows].tobytes())
        return last[1], last[2]

    def _forget_order(self) -> None:
        self._in_order = self._by_rank = self._requests_of = self._bytes_of = None
        self.num_changes += 1

    def _field(self, name: str) -> Int32s:
        field: Int32s = self.table[FIELDS.index(name)]
        return field

    def _of(self, rows: RowIndexes) -> list[R]:
        requests = self.requests
        return [request for row in rows.tolist() if (request := requests[row]) is not None]

    @property
    def has_removed(self) -> bool:
        """The next plan has rows to tell of."""
        return bool(self._removed)

    def drain_removed(self) -> list[int]:
        """Rows freed since the last plan, in that order; each at most once."""
        removed, self._removed = self._removed, []
        return removed

    def forget_removed(self) -> None:
        """The worker is gone and its rows with it: there is nobody to tell."""
        self._removed = []

    def check_integrity(self, used: list[int]) -> list[int]:
        """Assert that no row is free or used twice, or both. Returns those that are neither: they are given back."""
        rows = {*self._free, *used}
        assert len(rows) == len(self._free) + len(used), f"rows {sorted(used)} are used, {sorted(self._free)} free"
        lost = sorted(set(range(self.max_num_seqs)) - rows)
        for row in lost:
            self.give_back(row)
        assert sorted(np.flatnonzero(self.run).tolist()) == sorted(used), "rows with a run and running requests differ"
        assert len(set(self._removed)) == len(self._removed), f"a row is removed twice: {self._removed}"
        heap = list(self._free)
        heapify(heap)
        assert heap[:1] == self._free[:1], "the free rows are no heap"
        return lost
