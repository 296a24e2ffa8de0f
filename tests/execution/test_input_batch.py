"""The persistent batch: what a sequence of plans leaves in it, against a twin of plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ProtocolViolation
from callboard.execution.input_batch import InputBatch
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import NewRow, StepPlan


def int32(values):
    return np.array(values, np.int32).tobytes()


def new_row(row, run=1, tokens=(1, 2, 3), blocks=(0,), choice=0, **sampling):
    params = SamplingParams(**{"seed": 0} | sampling)
    return NewRow(row, run, f"request-{run}", choice, 0, len(tokens), int32(tokens), int32(blocks), params)


def make_plan(new=(), removed=(), block_rows=(), block_ids=()):
    return StepPlan(0, 0, 0, list(new), int32(removed), b"", b"", b"", b"", b"", int32(block_rows), int32(block_ids))


def make_batch(max_num_seqs=4, max_model_len=40, block_size=4):
    return InputBatch(max_num_seqs, max_model_len, block_size)


def blocks_of(batch, row):
    return batch.block_table[row, : batch.num_blocks[row]].tolist()


def test_appended_blocks_keep_their_order():
    batch = make_batch()
    batch.apply(make_plan([new_row(0, blocks=(9,)), new_row(2, 2, blocks=(8, 7))]))
    batch.apply(make_plan(block_rows=(2, 0, 2, 2, 0), block_ids=(1, 2, 3, 4, 5)))
    assert blocks_of(batch, 0) == [9, 2, 5]
    assert blocks_of(batch, 2) == [8, 7, 1, 3, 4]


def test_removal_comes_before_placement_in_one_plan():
    batch = make_batch()
    batch.apply(make_plan([new_row(1, 5, tokens=range(20), blocks=range(5), temperature=0.5, logprobs=3)]))
    batch.apply(make_plan([new_row(1, 6, blocks=(11,))], removed=(1,), block_rows=(1,), block_ids=(12,)))
    assert batch.run[1] == 6
    assert blocks_of(batch, 1) == [11, 12]
    assert batch.num_known[1] == 3
    assert not batch.sampling.has_logprobs[1]


def test_sampling_parameters_are_kept_exactly():
    batch = make_batch()
    sampling = {"temperature": 5e-324, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "seed": 2**64 - 1, "logprobs": 0}
    batch.apply(make_plan([new_row(3, choice=2, **sampling)]))
    arrays = batch.sampling
    assert arrays.temperature[3] > 0
    assert (arrays.top_k[3], arrays.top_p[3], arrays.min_p[3], arrays.choice[3]) == (7, 0.25, 0.125, 2)
    assert int(arrays.seed[3]) == 2**64 - 1
    assert arrays.has_logprobs[3]
    assert arrays.num_logprobs[3] == 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (make_plan([new_row(4)]), "new row 4 is outside 0..3"),
        (make_plan([new_row(0)]), "row 0 is taken by run 77"),
        (make_plan(removed=(-1,)), "removed_rows names a row outside"),
        (make_plan([new_row(1, tokens=range(41))]), "comes with 41 tokens"),
        (make_plan([new_row(1, blocks=range(11))]), "11 blocks"),
        (make_plan(block_rows=(0,) * 10, block_ids=range(10)), "row 0 gets more than its 10 blocks"),
        (make_plan(block_rows=(9,), block_ids=(0,)), "block_rows names a row outside"),
        (make_plan(block_rows=(0,), block_ids=(0, 1)), "1 entries, block_ids 2"),
    ],
)
def test_contradictions(plan, message):
    batch = make_batch()
    batch.apply(make_plan([new_row(0, 77)]))
    with pytest.raises(ProtocolViolation, match=message):
        batch.apply(plan)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=8), max_size=5))
def test_block_tables_equal_lists(plans):
    batch = make_batch(max_model_len=400)
    batch.apply(make_plan([new_row(row, row, blocks=(row,)) for row in range(4)]))
    tables = [[row] for row in range(4)]
    for appended in plans:
        batch.apply(make_plan(block_rows=[r for r, _ in appended], block_ids=[b for _, b in appended]))
        for row, block in appended:
            tables[row].append(block)
    assert [blocks_of(batch, row) for row in range(4)] == tables
