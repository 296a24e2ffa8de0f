"""The flat arrays of a step against a twin with loops, and the examples of the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import ProtocolViolation
from callboard.execution.input_batch import InputBatch
from callboard.execution.prepare_inputs import prepare_inputs
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import NewRow, StepPlan


def int32(values):
    return np.array(values, np.int32).tobytes()


def place(batch, rows):
    """rows: {row: (tokens, blocks)}; the run is 100 + row, the prompt one token."""
    new = [
        NewRow(row, 100 + row, "", 0, 0, 1, int32(tokens), int32(blocks), SamplingParams(seed=0))
        for row, (tokens, blocks) in rows.items()
    ]
    batch.apply(StepPlan(0, 0, 0, new, b"", b"", b"", b"", b"", b""))


def make_plan(scheduled):
    """scheduled: (row, start, num_tokens, samples)"""
    rows, starts, num_tokens, samples = zip(*scheduled, strict=True) if scheduled else ((), (), (), ())
    runs = np.array([100 + row for row in rows], np.int64).tobytes()
    flags = np.array(samples, np.bool_).tobytes()
    return StepPlan(0, 0, 0, [], b"", int32(rows), runs, int32(starts), int32(num_tokens), flags)


def test_chunk_and_decode_in_one_step():
    """A: 256 tokens cached, 256 new; B: one token. 257 tokens; the cached ones get no slot."""
    batch = InputBatch(4, 600, 16)
    place(batch, {0: (range(512), range(100, 132)), 3: (range(1000, 1034), (7, 5, 6))})
    inputs = prepare_inputs(batch, make_plan([(0, 256, 256, True), (3, 33, 1, True)]))
    assert inputs.token_ids.tolist() == [*range(256, 512), 1033]
    assert inputs.positions.tolist() == [*range(256, 512), 33]
    assert inputs.query_starts.tolist() == [0, 256, 257]
    assert inputs.kv_lens.tolist() == [512, 34]
    assert inputs.slot_mapping.tolist() == [*range(116 * 16, 132 * 16), 6 * 16 + 1]
    assert inputs.last_tokens.tolist() == [255, 256]
    assert inputs.sample_positions.tolist() == [512, 34]
    assert inputs.sample_runs.tolist() == [100, 103]
    assert all(a.dtype == np.int64 for a in (inputs.token_ids, inputs.positions, inputs.slot_mapping))


def test_token_sampled_by_an_earlier_step_is_read():
    batch = InputBatch(2, 40, 4)
    place(batch, {1: ([5, 6, 7], [3])})
    batch.write_sampled(np.array([1], np.int32), np.array([3], np.int32), np.array([42], np.int32))
    assert prepare_inputs(batch, make_plan([(1, 3, 1, True)])).token_ids.tolist() == [42]


def test_no_rows():
    inputs = prepare_inputs(InputBatch(2, 40, 4), make_plan([]))
    assert inputs.token_ids.size == inputs.rows.size == inputs.last_tokens.size == 0


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_equal_to_loops(data):
    block_size = data.draw(st.sampled_from([1, 4, 16]))
    batch = InputBatch(6, 64, block_size)
    rows, scheduled, free = {}, [], list(range(400))
    for row in data.draw(st.lists(st.integers(0, 5), unique=True, max_size=6)):
        end = data.draw(st.integers(1, 64))
        start = data.draw(st.integers(0, end - 1))
        blocks = [free.pop(data.draw(st.integers(0, len(free) - 1))) for _ in range(-(-end // block_size))]
        rows[row] = ([row * 1000 + i for i in range(end)], blocks)
        scheduled.append((row, start, end - start, data.draw(st.booleans())))
    place(batch, rows)
    inputs = prepare_inputs(batch, make_plan(scheduled))
    tokens, positions, slots, last = [], [], [], []
    for row, start, num_tokens, samples in scheduled:
        for position in range(start, start + num_tokens):
            tokens.append(rows[row][0][position])
            positions.append(position)
            slots.append(rows[row][1][position // block_size] * block_size + position % block_size)
        if samples:
            last.append(len(tokens) - 1)
    assert inputs.token_ids.tolist() == tokens
    assert inputs.positions.tolist() == positions
    assert inputs.slot_mapping.tolist() == slots
    assert len(set(slots)) == len(slots)
    assert inputs.last_tokens.tolist() == last
    assert inputs.sample_rows.tolist() == [row for row, _, _, samples in scheduled if samples]


@pytest.mark.parametrize(
    ("scheduled", "message"),
    [
        ([(0, 0, 4, True), (1, 0, 1, True)], "row 1 .* names a run that the row does not hold"),
        ([(0, 0, 0, True)], "computes no token"),
        ([(0, -1, 1, True)], "computes no token"),
        ([(0, 3, 2, True)], "computes a token that is not known"),
        ([(2, 0, 7, True)], "computes a token that has no block"),
        ([(6, 0, 1, True)], "a row outside 0..5"),
    ],
)
def test_contradictions(scheduled, message):
    batch = InputBatch(6, 64, 4)
    place(batch, {0: ([1, 2, 3, 4], [0]), 2: (range(7), [1])})
    with pytest.raises(ProtocolViolation, match=message):
        prepare_inputs(batch, make_plan(scheduled))
