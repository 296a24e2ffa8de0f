"""The two ends of a decode step on the device: from what it knows of its rows to the step's inputs, and back.

    begin:  token, position, slot of each place in the step, and how many tokens it sees
    finish: the sampled token becomes the row's last, one position further on

Places that are padding stand for a row behind the last one: they write to no slot (-1) and see nothing (0).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RowState(NamedTuple):
    """Rows between steps; the last entry is what padding is."""

    tokens: Tensor
    """int32 [rows + 1]"""
    positions: Tensor
    """int32 [rows + 1]; 0 for padding"""


class DecodeInputs(NamedTuple):
    """Of n places."""

    token_ids: Tensor
    """int64 [n]"""
    positions: Tensor
    """int64 [n]"""
    slot_mapping: Tensor
    """int64 [n]"""
    kv_lens: Tensor
    """int32 [n]"""


def begin_decode(state: RowState, order: Tensor, step_tables: Tensor, block_size: int, out: DecodeInputs) -> None:
    """order: int32 [n], the row at each place; step_tables: int32 [n, max_blocks], its blocks."""
    is_row = order < state.tokens.shape[0] - 1
    positions = state.positions.index_select(0, order)
    out.token_ids.copy_(state.tokens.index_select(0, order))
    out.positions.copy_(positions)
    blocks = step_tables.gather(1, (positions // block_size).long()[:, None])[:, 0].long()
    out.slot_mapping.copy_(torch.where(is_row, blocks * block_size + positions % block_size, -1))
    out.kv_lens.copy_(torch.where(is_row, positions + 1, 0))


def finish_decode(state: RowState, order: Tensor, sampled: Tensor) -> None:
    """sampled: int32 [n]; padding stays as it is."""
    is_row = order < state.tokens.shape[0] - 1
    kept = state.tokens.index_select(0, order)
    state.tokens.index_copy_(0, order.long(), torch.where(is_row, sampled, kept))
    state.positions.index_add_(0, order.long(), is_row.to(torch.int32))
