"""From the scheduled rows of a plan to the flat arrays of a step, in numpy, without a loop over rows or tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..mailbox.messages.steps import StepPlan
from .input_batch import InputBatch, Int32s, Int64s
from .planned_rows import PlannedRows, Propose, read_rows


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
    """[k]: row of the batch; one with drafts as often as it samples, that is behind its last token and each draft."""
    sample_runs: Int64s
    """[k]"""
    sample_positions: Int32s
    """[k]: position of the token to be sampled."""
    last_tokens: Int64s
    """[k]: index in the flat list of the token whose logits are sampled from."""
    sample_counts: Int32s | None = None
    """How often each of the rows samples, 1 + its drafts, in sum k; None: once, and no row has drafts."""
    plan_id: tuple[int, int] = (0, 0)
    """Epoch and step of the plan."""


def prepare_inputs(batch: InputBatch, plan: StepPlan, propose: Propose | None = None) -> StepInputs:
    """As `read_rows`, laid out flat."""
    return flat_inputs(batch, read_rows(batch, plan, propose), (plan.epoch, plan.step))


def flat_inputs(batch: InputBatch, planned: PlannedRows, plan_id: tuple[int, int] = (0, 0)) -> StepInputs:
    """The flat arrays of a step."""
    rows, starts, num_tokens, samples = planned.rows, planned.starts, planned.num_tokens, planned.samples
    query_starts = np.zeros(rows.size + 1, np.int64)
    np.cumsum(num_tokens, out=query_starts[1:])
    flat_rows = np.repeat(rows, num_tokens)
    positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], num_tokens)
    blocks = batch.block_table[flat_rows, positions // batch.block_size].astype(np.int64)
    sampled = np.flatnonzero(samples)
    sample_positions, last_tokens = planned.ends[sampled], query_starts[1:][sampled] - 1
    sample_counts: Int32s | None = None
    if planned.num_drafts is not None:
        num_drafts = planned.num_drafts[sampled]
        sample_counts = num_drafts + np.int32(1)
        sampled = np.repeat(sampled, sample_counts)
        # Of each row: 1 - its number of places, ..., -1, 0.
        back = np.arange(sampled.size) - np.repeat(np.cumsum(sample_counts) - 1, sample_counts)
        sample_positions = np.repeat(sample_positions, sample_counts) + back.astype(np.int32)
        last_tokens = np.repeat(last_tokens, sample_counts) + back
    return StepInputs(
        rows=rows,
        starts=starts,
        num_tokens=num_tokens,
        kv_lens=planned.ends,
        query_starts=query_starts,
        token_ids=batch.token_ids[flat_rows, positions].astype(np.int64),
        positions=positions,
        slot_mapping=blocks * batch.block_size + positions % batch.block_size,
        sample_rows=rows[sampled],
        sample_runs=planned.runs[sampled],
        sample_positions=sample_positions,
        last_tokens=last_tokens,
        sample_counts=sample_counts,
        plan_id=plan_id,
    )
