"""Rows with drafts: where they go on, what they compute and draw behind, and what they yield."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import ProtocolViolation
from callboard.execution.drafter import Drafter
from callboard.execution.input_batch import InputBatch
from callboard.execution.prepare_inputs import prepare_inputs
from callboard.execution.sampler import Sampled
from callboard.execution.yields import take_yields
from callboard.mailbox.messages.steps import StepPlan
from callboard.speculative.proposer import ProposedDrafts
from callboard.tests.execution.test_prepare_inputs import int32, make_plan, place

LENGTH, BLOCK_SIZE = 40, 4


class Scripted:
    """Guesses 900, 901, ... for each row, at most `most`."""

    def __init__(self, most):
        self.most, self.asked = most, []

    def follow(self, row, num_given_tokens, sharing_key):
        pass

    def forget(self, rows):
        pass

    def propose(self, rows, token_ids, num_known, max_drafts):
        self.asked.append((rows.tolist(), num_known[rows].tolist(), max_drafts.tolist()))
        counts = np.minimum(max_drafts, self.most).astype(np.int32)
        return ProposedDrafts(counts, np.concatenate([np.arange(900, 900 + n) for n in counts]).astype(np.int32))


def guessing(scheduled, bounds):
    """bounds: (max_drafts, draft_end) of each row"""
    most, ends = zip(*bounds, strict=True)
    return msgspec.structs.replace(make_plan(scheduled), max_drafts=int32(most), draft_ends=int32(ends))


def test_a_row_goes_on_where_it_stands():
    """Row 2 stands two tokens further than the plan could know, row 0 computes a chunk of its prompt."""
    batch = InputBatch(4, LENGTH, BLOCK_SIZE)
    place(batch, {0: (range(10), (0, 1, 2)), 2: (range(100, 107), (3, 4, 5))})
    proposer = Scripted(most=9)
    plan = guessing([(0, 2, 4, False), (2, 4, 1, True)], [(-1, 0), (3, 12)])
    inputs = prepare_inputs(batch, plan, Drafter(batch, proposer))
    assert proposer.asked == [([2], [7], [3])]
    assert inputs.token_ids.tolist() == [2, 3, 4, 5, 106, 900, 901, 902]
    assert inputs.positions.tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert inputs.slot_mapping.tolist() == [2, 3, 4, 5, 18, 19, 20, 21]
    assert inputs.sample_rows.tolist() == [2] * 4 and inputs.sample_positions.tolist() == [7, 8, 9, 10]
    assert inputs.last_tokens.tolist() == [4, 5, 6, 7]
    result = take_yields(batch, inputs, Sampled(np.array([900, 901, 7, 8], np.int32), {}))
    assert np.frombuffer(result.token_ids, np.int32).tolist() == [900, 901, 7]
    assert np.frombuffer(result.runs, np.int64).tolist() == [102]
    assert np.frombuffer(result.positions, np.int32).tolist() == [7]
    assert (
        np.frombuffer(result.num_sampled, np.int32).tolist()
        == np.frombuffer(result.num_drafted, np.int32).tolist()
        == [3]
    )
    assert batch.num_known[2] == 10 and batch.token_ids[2, 6:10].tolist() == [106, 900, 901, 7]


def test_a_row_at_its_end_is_left_out():
    batch = InputBatch(4, LENGTH, BLOCK_SIZE)
    place(batch, {0: (range(9), (0, 1, 2)), 1: (range(50, 58), (3, 4))})
    inputs = prepare_inputs(
        batch, guessing([(0, 7, 1, True), (1, 6, 1, True)], [(4, 8), (4, 8)]), Drafter(batch, Scripted(most=9))
    )
    assert inputs.rows.tolist() == [1] and inputs.token_ids.tolist() == [57], "no draft has a place before 8"
    assert inputs.sample_runs.tolist() == [101]


@given(
    num_known=st.integers(2, 30), behind=st.integers(0, 3), most=st.integers(0, 6), room=st.integers(1, 8),
    found=st.integers(0, 8),
)  # fmt: skip
def test_drafts_end_where_they_must(num_known, behind, most, room, found):
    batch = InputBatch(2, LENGTH, 1)
    place(batch, {0: (range(num_known), range(39))})
    last = num_known - 1
    plan = guessing([(0, max(0, last - behind), 1, True)], [(most, last + room)])
    inputs = prepare_inputs(batch, plan, Drafter(batch, Scripted(found)))
    num_drafts = min(most, room - 1, found)
    assert inputs.positions.tolist() == list(range(last, last + 1 + num_drafts))
    assert inputs.sample_counts.tolist() == [1 + num_drafts]


def test_drafts_of_a_plan_are_verified():
    batch = InputBatch(2, LENGTH, BLOCK_SIZE)
    place(batch, {0: (range(5), (0, 1)), 1: (range(20, 23), (2,))})
    plan = make_plan([(0, 4, 3, True), (1, 2, 1, True)])
    inputs = prepare_inputs(batch, msgspec.structs.replace(plan, num_drafts=int32([2, 0]), draft_ids=int32([70, 71])))
    assert inputs.token_ids.tolist() == [4, 70, 71, 22]
    assert inputs.sample_positions.tolist() == [5, 6, 7, 3]
    result = take_yields(batch, inputs, Sampled(np.array([70, 5, 6, 9], np.int32), {}))
    assert np.frombuffer(result.token_ids, np.int32).tolist() == [70, 5, 9]
    assert np.frombuffer(result.num_sampled, np.int32).tolist() == [2, 1]
    assert batch.num_known[:2].tolist() == [7, 4]


def test_log_probabilities_of_tokens_that_count():
    """Of row 0, whose second draft is wrong; row 1 asks for none."""
    batch = InputBatch(2, LENGTH, BLOCK_SIZE)
    place(batch, {0: (range(5), (0, 1)), 1: (range(20, 23), (2,))})
    plan = make_plan([(1, 2, 1, True), (0, 4, 3, True)])
    inputs = prepare_inputs(batch, msgspec.structs.replace(plan, num_drafts=int32([0, 2]), draft_ids=int32([70, 71])))
    fields = {
        "logprob_rows": int32([1, 2, 3]),
        "logprobs": np.array([-1, -2, -3], np.float32).tobytes(),
        "top_ids": int32([[1, 2], [3, 4], [5, 6]]),
        "top_logprobs": np.array([[-1, -2], [-3, -4], [-5, -6]], np.float32).tobytes(),
    }
    result = take_yields(batch, inputs, Sampled(np.array([9, 70, 5, 6], np.int32), fields))
    told = result.logprobs
    assert np.frombuffer(result.token_ids, np.int32).tolist() == [9, 70, 5]
    assert np.frombuffer(told["logprob_rows"], np.int32).tolist() == [1, 2]
    assert np.frombuffer(told["logprobs"], np.float32).tolist() == [-1, -2]
    assert np.frombuffer(told["top_ids"], np.int32).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_drafts": int32([2]), "draft_ends": int32([8, 8])}, "bounds of drafts"),
        ({"max_drafts": int32([9, -1]), "draft_ends": int32([30, 0])}, "no block"),
        ({"num_drafts": int32([1, 0]), "draft_ids": int32([7, 7])}, "2 drafts"),
        ({"num_drafts": int32([1, 0]), "draft_ids": int32([7])}, "among tokens"),
        ({"max_drafts": int32([2, 2]), "draft_ends": int32([8, 8]), "starts": int32([9, 2])}, "stands at"),
        ({"max_drafts": int32([2, 2]), "draft_ends": int32([8, 8]), "rows": int32([1, 0])}, "does not hold"),
    ],
)
def test_a_plan_that_contradicts_itself_or_the_batch(changes, says):
    batch = InputBatch(2, LENGTH, BLOCK_SIZE)
    place(batch, {0: (range(5), (0, 1)), 1: (range(20, 23), (2,))})
    plan: StepPlan = msgspec.structs.replace(make_plan([(0, 4, 1, True), (1, 2, 1, True)]), **changes)
    with pytest.raises(ProtocolViolation, match=says):
        prepare_inputs(batch, plan, Drafter(batch, Scripted(most=30)))
