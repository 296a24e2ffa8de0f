"""Both ends of a decode step beside their twins, with padding."""

from __future__ import annotations

import pytest
import torch

from callboard.kernels import decode_state as twin
from callboard.kernels.decode_state import DecodeInputs, RowState
from callboard.kernels.gpu.decode_ends import begin_decode, finish_decode
from callboard.tests.kernels.gpu import DEVICE

MAX_BLOCKS, BLOCK_SIZE = 9, 8


def rows_of(num_places, num_rows=130):
    """(tokens, positions, order with padding at its end, step tables)"""
    generator = torch.Generator().manual_seed(num_places)
    draw = lambda high, *size: torch.randint(high, size, generator=generator).int()  # noqa: E731
    state = RowState(draw(1000, num_rows + 1), draw(MAX_BLOCKS * BLOCK_SIZE, num_rows + 1))
    state.positions[-1] = 0
    order = torch.randperm(num_rows, generator=generator)[:num_places].int()
    order[num_places - num_places // 4 :] = num_rows
    return state, order, draw(500, num_places, MAX_BLOCKS + 3)[:, :MAX_BLOCKS]


@pytest.mark.parametrize("num_places", [1, 7, 64, 130])
def test_beginning(num_places):
    state, order, tables = rows_of(num_places)
    expected, result = (
        DecodeInputs(*(torch.full((num_places,), 77, dtype=t) for t in (torch.int64,) * 3 + (torch.int32,)))
        for _ in range(2)
    )
    twin.begin_decode(state, order, tables, BLOCK_SIZE, expected)
    result = DecodeInputs(*(part.to(DEVICE) for part in result))
    wide = torch.cat((tables, tables), 1).to(DEVICE)[:, :MAX_BLOCKS]
    begin_decode(RowState(*(part.to(DEVICE) for part in state)), order.to(DEVICE), wide, BLOCK_SIZE, result)
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.cpu().equal(theirs)


@pytest.mark.parametrize("num_places", [1, 7, 130])
def test_finishing(num_places):
    state, order, _ = rows_of(num_places)
    sampled = torch.arange(num_places, dtype=torch.int32) + 5000
    result = RowState(*(part.to(DEVICE, copy=True) for part in state))
    twin.finish_decode(state, order, sampled)
    finish_decode(result, order.to(DEVICE), sampled.to(DEVICE))
    for ours, theirs in zip(result, state, strict=True):
        assert ours.cpu()[:-1].equal(theirs[:-1])
    assert result.positions[-1] == 0
