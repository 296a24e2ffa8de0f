"""From the scheduled rows of a plan to the flat arrays of a step, in numpy, without a loop over rows or tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolViolation
from ..mailbox.messages.steps import StepPlan
from .input_batch import InputBatch, Int32s, Int64s


@dataclass(frozen=True, slots=True)
class StepInputs:
    """n scheduled rows in plan order, t = sum of num_tokens tokens row after row, k rows that sample."""

    rows: Int32s
    """[n]: row of the batch."""
    starts: Int32s
    """[n]: position of the row's first token in this step."""
    num_tokens: Int32s
    """[n]"""
    kv_lens: Int32s
    """[n]: tokens that the row's last query token sees, itself included."""
    query_starts: Int64s
    """[n + 1]: index of each row's first token in the flat list; the last entry is t."""
    token_ids: Int64s
    """[t]"""
    positions: Int64s
    """[t]"""
    slot_mapping: Int64s
    """[t]: block_id * block_size + offset of the slot that gets the token's key and value."""
    sample_rows: Int32s
    """[k]: row of the batch."""
    sample_runs: Int64s
    """[k]"""
    sample_positions: Int32s
    """[k]: position of the token to be sampled."""
    last_tokens: Int64s
    """[k]: index in the flat list of the token whose logits are sampled from."""


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The n scheduled rows of a plan, as it has them: arrays [n]."""

    rows: Int32s
    runs: Int64s
    starts: Int32s
    num_tokens: Int32s
    ends: Int32s
    """starts + num_tokens"""
    samples: NDArray[np.bool_]

    @property
    def are_all_single(self) -> bool:
        """Whether each row computes one token and samples."""
        return bool((self.num_tokens == 1).all() and self.samples.all())


def read_rows(batch: InputBatch, plan: StepPlan) -> PlannedRows:
    """`batch` has the plan's changes applied already. Raises ProtocolViolation where the plan names a run that its row
    does not hold, or positions without a token or without a block."""
    starts = np.frombuffer(plan.starts, np.int32)
    num_tokens = np.frombuffer(plan.num_tokens, np.int32)
    runs, samples = np.frombuffer(plan.runs, np.int64), np.frombuffer(plan.samples, np.bool_)
    rows = np.frombuffer(plan.rows, np.int32)
    if not rows.size == runs.size == starts.size == num_tokens.size == samples.size:
        raise ProtocolViolation("rows, runs, starts, num_tokens and samples of a plan differ in length")
    planned = PlannedRows(rows, runs, starts, num_tokens, starts + num_tokens, samples)
    _check(batch, planned)
    return planned


def prepare_inputs(batch: InputBatch, plan: StepPlan) -> StepInputs:
    """As `read_rows`, laid out flat."""
    return flat_inputs(batch, read_rows(batch, plan))


def flat_inputs(batch: InputBatch, planned: PlannedRows) -> StepInputs:
    """The flat arrays of a step."""
    rows, starts, num_tokens, samples = planned.rows, planned.starts, planned.num_tokens, planned.samples
    query_starts = np.zeros(rows.size + 1, np.int64)
    np.cumsum(num_tokens, out=query_starts[1:])
    flat_rows = np.repeat(rows, num_tokens)
    positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], num_tokens)
    blocks = batch.block_table[flat_rows, positions // batch.block_size].astype(np.int64)
    return StepInputs(
        rows=rows,
        starts=starts,
        num_tokens=num_tokens,
        kv_lens=planned.ends,
        query_starts=query_starts,
        token_ids=batch.token_ids[flat_rows, positions].astype(np.int64),
        positions=positions,
        slot_mapping=blocks * batch.block_size + positions % batch.block_size,
        sample_rows=rows[samples],
        sample_runs=planned.runs[samples],
        sample_positions=planned.ends[samples],
        last_tokens=query_starts[1:][samples] - 1,
    )


def _check(batch: InputBatch, planned: PlannedRows) -> None:
    rows, runs, starts, ends = planned.rows, planned.runs, planned.starts, planned.ends
    if not rows.size:
        return
    if rows.min() < 0 or rows.max() >= batch.max_num_seqs:
        raise ProtocolViolation(f"a plan names a row outside 0..{batch.max_num_seqs - 1}: {rows.tolist()}")
    faults = (
        (~batch.is_used[rows] | (batch.run[rows] != runs), "names a run that the row does not hold"),
        ((starts < 0) | (planned.num_tokens < 1), "computes no token"),
        (ends > batch.num_known[rows], "computes a token that is not known"),
        (ends > batch.num_blocks[rows] * batch.block_size, "computes a token that has no block"),
        (planned.samples & (ends < batch.num_prompt_tokens[rows]), "samples inside the prompt"),
    )
    for is_faulty, what in faults:
        if is_faulty.any():
            i = int(is_faulty.argmax())
            raise ProtocolViolation(
                f"row {rows[i]} (run {runs[i]}, positions {starts[i]}..{ends[i] - 1}) {what}: it holds run "
                f"{batch.run[rows[i]]} with {batch.num_known[rows[i]]} tokens, {batch.num_blocks[rows[i]]} blocks"
            )
