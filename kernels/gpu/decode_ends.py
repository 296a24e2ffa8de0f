"""Both ends of a decode step in one small kernel each: `kernels.decode_state` says what they do, and is the twin.

int32 and int64 only, so results are exact. One program takes BLOCK places; what is around it are reads of rows that lie
anywhere, some of which wait for others: microseconds, whatever the number of rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..decode_state import DecodeInputs, RowState

_BLOCK = 64


@triton.jit
def _begin(
    tokens,
    positions,
    order,
    step_tables,
    token_ids,
    step_positions,
    slot_mapping,
    kv_lens,
    num_places,
    padding_row,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_place = place < num_places
    row = tl.load(order + place, mask=is_place, other=0)
    is_row = row < padding_row
    token = tl.load(tokens + row, mask=is_place, other=0)
    position = tl.load(positions + row, mask=is_place, other=0)
    block_at = step_tables + place.to(tl.int64) * table_stride + position // BLOCK_SIZE
    block = tl.load(block_at, mask=is_place & is_row, other=0)
    slot = tl.where(is_row, block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE, -1)
    tl.store(token_ids + place, token.to(tl.int64), mask=is_place)
    tl.store(step_positions + place, position.to(tl.int64), mask=is_place)
    tl.store(slot_mapping + place, slot, mask=is_place)
    tl.store(kv_lens + place, tl.where(is_row, position + 1, 0), mask=is_place)


@triton.jit
def _finish(tokens, positions, order, sampled, num_places, padding_row, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(order + place, mask=place < num_places, other=padding_row)
    is_row = row < padding_row
    tl.store(tokens + row, tl.load(sampled + place, mask=is_row, other=0), mask=is_row)
    position = tl.load(positions + row, mask=is_row, other=0)
    tl.store(positions + row, position + 1, mask=is_row)


def begin_decode(state: RowState, order: Tensor, step_tables: Tensor, block_size: int, out: DecodeInputs) -> None:
    """Arguments as the twin's; all dense but for the rows of `step_tables`."""
    num_places = order.shape[0]
    _begin[(triton.cdiv(num_places, _BLOCK),)](
        *state,
        order,
        step_tables,
        *out,
        num_places,
        state.tokens.shape[0] - 1,
        step_tables.stride(0),
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        num_warps=2,
    )


def finish_decode(state: RowState, order: Tensor, sampled: Tensor) -> None:
    """As the twin, but that of padding nothing is kept."""
    num_places = order.shape[0]
    _finish[(triton.cdiv(num_places, _BLOCK),)](
        *state, order, sampled, num_places, state.tokens.shape[0] - 1, BLOCK=_BLOCK, num_warps=2
    )
