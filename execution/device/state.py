"""What the device knows of each row between steps, and the host's picture of it.

All of it lies in one int32 tensor, so that a plan's changes are pairs (place, value), whatever they are about, and one
operation puts them in. A row of the batch has a token (its last one), the position of it, and a block table. A step's
rows are listed in the order of the plan; behind the last row stands one more, which padding is.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..input_batch import InputBatch, Int32s, Int64s
from .staging import StagingRing

_UNKNOWN = -1
_ALIGNMENT = 64
"""Elements: each part begins where a wide read may."""


class Changes:
    """Pairs (place, value) of one step."""

    def __init__(self) -> None:
        self._places: list[NDArray[np.int64]] = []
        self._values: list[Int32s] = []

    def set(self, places: NDArray[np.int64], values: Int32s) -> None:
        """[m] each; a place is set once a step, or the same value each time."""
        self._places.append(places)
        self._values.append(values)

    def stage(self, ring: StagingRing) -> tuple[Tensor, Tensor] | None:
        """(int64 places, int32 values) as they will be on the device; None if there is no change."""
        if not self._places:
            return None
        return ring.put(np.concatenate(self._places)), ring.put(np.concatenate(self._values))


class DeviceState:
    """Of `max_num_seqs` rows of up to `max_blocks` blocks, and steps of up to `max_step_rows` rows."""

    def __init__(self, batch: InputBatch, max_step_rows: int, device: torch.device) -> None:
        self._batch = batch
        self.padding_row = num_rows = batch.max_num_seqs
        rows, blocks = num_rows + 1, batch.max_blocks
        sizes = {"tokens": rows, "positions": rows, "order": max_step_rows}
        sizes |= {"tables": rows * blocks, "step_tables": max_step_rows * blocks}
        starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes.values())])
        self._starts = dict(zip(sizes, starts.tolist(), strict=False))
        self.everything = torch.zeros(int(starts[-1]), dtype=torch.int32, device=device)
        parts = {name: self.everything[self._starts[name] :][:size] for name, size in sizes.items()}
        self.tokens: Tensor = parts["tokens"]
        """int32 [rows + 1]: last token of each row, sampled or told"""
        self.positions: Tensor = parts["positions"]
        """int32 [rows + 1]: position of that token, the next one that the row computes"""
        self.order: Tensor = parts["order"]
        """int32 [max_step_rows]: row of each place in the step"""
        self.tables: Tensor = parts["tables"].view(rows, blocks)
        """int32: block table of each row"""
        self.step_tables: Tensor = parts["step_tables"].view(max_step_rows, blocks)
        """int32: block table of each place in the step"""
        self.clear()

    def clear(self) -> None:
        """The device is not asked about any row any more, unless it was told about it."""
        num_rows = self.padding_row
        self.token_positions: Int32s = np.full(num_rows, _UNKNOWN, np.int32)
        """Position of `tokens`, by row; -1: it is not known there"""
        self.next_positions: Int32s = np.full(num_rows, _UNKNOWN, np.int32)
        """`positions`, by row"""
        self._order: Int32s = np.zeros(0, np.int32)
        self._bucket = 0
        self._num_blocks: Int32s = np.zeros(num_rows, np.int32)
        """Entries of `tables` that are as in the batch, by row."""
        self.are_step_tables_stale = True

    def forget(self, rows: Int32s) -> None:
        """New requests stand there."""
        self.token_positions[rows] = _UNKNOWN
        self.next_positions[rows] = _UNKNOWN
        self._num_blocks[rows] = 0

    def bring_tables(self, rows: Int32s, changes: Changes) -> None:
        """`tables` of these rows as in the batch, and `step_tables` if they stand in the step as it is ordered."""
        batch, width = self._batch, self._batch.max_blocks
        behind = rows[self._num_blocks[rows] < batch.num_blocks[rows]]
        if not behind.size:
            return
        counts = batch.num_blocks[behind] - self._num_blocks[behind]
        owners = np.repeat(behind, counts).astype(np.int64)
        columns = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - self._num_blocks[behind], counts)
        block_ids = batch.block_table[owners, columns]
        changes.set(self._starts["tables"] + owners * width + columns, block_ids)
        self._num_blocks[behind] = batch.num_blocks[behind]
        if not self.are_step_tables_stale:
            place_of = np.full(self.padding_row, _UNKNOWN, np.int64)
            place_of[self._order] = np.arange(self._order.size)
            places = place_of[owners]
            is_in = places >= 0
            changes.set(self._starts["step_tables"] + places[is_in] * width + columns[is_in], block_ids[is_in])

    def bring_order(self, rows: Int32s, bucket: int, changes: Changes) -> None:
        """`order` names these rows, then padding up to `bucket`."""
        if bucket == self._bucket and np.array_equal(rows, self._order):
            return
        order = np.full(bucket, self.padding_row, np.int32)
        order[: rows.size] = rows
        changes.set(self._starts["order"] + np.arange(bucket), order)
        self._order, self._bucket = rows.copy(), bucket
        self.are_step_tables_stale = True

    def bring_tokens(self, rows: Int32s, positions: Int32s, token_ids: Int32s, changes: Changes) -> None:
        """The token that the host knows at each position becomes the row's last."""
        if rows.size:
            changes.set(self._starts["tokens"] + rows.astype(np.int64), token_ids)
            self.token_positions[rows] = positions

    def bring_positions(self, rows: Int32s, positions: Int32s, changes: Changes) -> None:
        """`positions` of these rows, where they are others."""
        is_other = self.next_positions[rows] != positions
        if is_other.any():
            changes.set(self._starts["positions"] + rows[is_other].astype(np.int64), positions[is_other])
            self.next_positions[rows] = positions

    def note_sampled(self, rows: Int32s, positions: Int32s) -> None:
        """The step that is launched now leaves its tokens, at these positions, in `tokens`."""
        self.token_positions[rows] = positions

    def note_drafted(self, rows: Int32s) -> None:
        """The step that is launched now verifies drafts: only the host will say how far these rows have come."""
        self.token_positions[rows] = _UNKNOWN
        self.next_positions[rows] = _UNKNOWN

    def note_advanced(self, rows: Int32s) -> None:
        """The step that is launched now moves `positions` of these rows on by one."""
        self.next_positions[rows] += 1

    def apply(self, staged: tuple[Tensor, Tensor] | None) -> None:
        """On the device: the changes of a step, as they were staged."""
        if staged is not None:
            self.everything.index_copy_(0, *staged)

    def refresh_step_tables(self) -> None:
        """On the device: block tables in the order of the step, where that is another than before."""
        if self.are_step_tables_stale:
            order = self.order[: self._bucket]
            num_columns = int(self._num_blocks[self._order].max(initial=1))
            self.step_tables[: self._bucket, :num_columns] = self.tables[:, :num_columns].index_select(0, order)
            self.are_step_tables_stale = False

    def bring_padding(self, bucket: int) -> None:
        """On the device: an order of nothing but padding."""
        self.order[:bucket] = self.padding_row
        self._order, self._bucket = np.zeros(0, np.int32), bucket

    def tokens_there(self, rows: Int32s, positions: Int64s | Int32s) -> NDArray[np.bool_]:
        """Whether `tokens` has the token of a row at a position; arrays of one length."""
        is_there: NDArray[np.bool_] = self.token_positions[rows] == positions
        return is_there
