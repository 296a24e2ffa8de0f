"""The scheduled rows of a plan, checked against what the batch holds, with the drafts that they verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolViolation
from ..mailbox.messages.steps import NO_DRAFTING, StepPlan
from ..speculative.proposer import ProposedDrafts
from .input_batch import InputBatch, Int32s, Int64s


class Propose(Protocol):
    """What guesses: a `Proposer`, or what stands before one."""

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts: ...


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The n rows of a plan that compute something, in its order: arrays [n]."""

    rows: Int32s
    runs: Int64s
    starts: Int32s
    num_tokens: Int32s
    ends: Int32s
    """starts + num_tokens"""
    samples: NDArray[np.bool_]
    num_drafts: Int32s | None = None
    """Of each row's tokens so many, its last ones, are drafts, which stand in the batch; None: no row has any."""

    @property
    def are_all_single(self) -> bool:
        """Whether each row computes one token and samples."""
        return bool((self.num_tokens == 1).all() and self.samples.all())


def read_rows(batch: InputBatch, plan: StepPlan, propose: Propose | None = None) -> PlannedRows:
    """`batch` has the plan's changes applied already; drafts are written behind what it knows of a row. `propose`:
    asked where the plan leaves it to the worker to guess. Raises ProtocolViolation where the plan names a run that its
    row does not hold, or positions without a token or without a block."""
    starts = np.frombuffer(plan.starts, np.int32)
    num_tokens = np.frombuffer(plan.num_tokens, np.int32)
    runs, samples = np.frombuffer(plan.runs, np.int64), np.frombuffer(plan.samples, np.bool_)
    rows = np.frombuffer(plan.rows, np.int32)
    if not rows.size == runs.size == starts.size == num_tokens.size == samples.size:
        raise ProtocolViolation("rows, runs, starts, num_tokens and samples of a plan differ in length")
    planned = PlannedRows(rows, runs, starts, num_tokens, starts + num_tokens, samples)
    if not plan.num_drafts and not plan.max_drafts:
        _check(batch, planned, planned.ends)
        return planned
    _check_runs(batch, planned)
    planned = _with_given(batch, planned, plan) if plan.num_drafts else _with_guesses(batch, planned, plan, propose)
    assert planned.num_drafts is not None
    _check(batch, planned, planned.ends - planned.num_drafts)
    return planned


def _with_given(batch: InputBatch, planned: PlannedRows, plan: StepPlan) -> PlannedRows:
    num_drafts, token_ids = np.frombuffer(plan.num_drafts, np.int32), np.frombuffer(plan.draft_ids, np.int32)
    if num_drafts.size != planned.rows.size or num_drafts.sum() != token_ids.size:
        raise ProtocolViolation(f"{token_ids.size} drafts, {num_drafts.tolist()} for {planned.rows.size} rows")
    ends = planned.ends
    if (num_drafts < 0).any() or (num_drafts >= planned.num_tokens).any() or (ends > batch.max_model_len).any():
        raise ProtocolViolation(f"drafts {num_drafts.tolist()} among tokens {planned.num_tokens.tolist()}")
    _write_drafts(batch, planned.rows, ends - num_drafts, num_drafts, token_ids)
    return PlannedRows(
        planned.rows, planned.runs, planned.starts, planned.num_tokens, ends, planned.samples, num_drafts
    )


def _with_guesses(batch: InputBatch, planned: PlannedRows, plan: StepPlan, propose: Propose | None) -> PlannedRows:
    """Rows that draft go on where they stand; those that have come to their end are left out."""
    most, ends = np.frombuffer(plan.max_drafts, np.int32), np.frombuffer(plan.draft_ends, np.int32)
    if not most.size == ends.size == planned.rows.size:
        raise ProtocolViolation(f"a plan of {planned.rows.size} rows has bounds of drafts for {most.size}, {ends.size}")
    rows, runs, samples, is_open = planned.rows, planned.runs, planned.samples, most != NO_DRAFTING
    lasts = batch.num_known[rows] - 1
    is_behind = is_open & (lasts < planned.starts) & ~batch.is_constrained[rows]
    if is_behind.any():
        i = int(is_behind.argmax())
        raise ProtocolViolation(f"row {rows[i]} (run {runs[i]}) stands at {lasts[i]}, before {planned.starts[i]}")
    starts = np.where(is_open, lasts, planned.starts)
    num_tokens = np.where(is_open, 1, planned.num_tokens).astype(np.int32)
    room = np.where(is_open, np.minimum(most, ends - lasts - 1), 0).astype(np.int32)
    if (is_open & (lasts >= ends)).any():
        is_left = ~(is_open & (lasts >= ends))
        rows, runs, samples, starts = rows[is_left], runs[is_left], samples[is_left], starts[is_left]
        num_tokens, room = num_tokens[is_left], room[is_left]
    num_drafts = np.zeros(rows.size, np.int32)
    asked = np.flatnonzero(room > 0)
    if asked.size and propose is not None:
        drafts = propose.propose(rows[asked], batch.token_ids, batch.num_known, room[asked])
        num_drafts[asked] = drafts.counts
        _write_drafts(batch, rows[asked], starts[asked] + 1, drafts.counts, drafts.token_ids)
    num_tokens += num_drafts
    return PlannedRows(rows, runs, starts, num_tokens, starts + num_tokens, samples, num_drafts)


def _write_drafts(batch: InputBatch, rows: Int32s, positions: Int32s, counts: Int32s, token_ids: Int32s) -> None:
    """Of row i the next counts[i] of the tokens, from positions[i] on: int32 [n] and [sum(counts)]. They are not known:
    whatever is sampled there takes their place."""
    offsets = np.arange(token_ids.size) - np.repeat(np.cumsum(counts) - counts, counts)
    batch.token_ids[np.repeat(rows, counts), np.repeat(positions, counts) + offsets] = token_ids


def _check_runs(batch: InputBatch, planned: PlannedRows) -> None:
    rows, runs = planned.rows, planned.runs
    if not rows.size:
        return
    if rows.min() < 0 or rows.max() >= batch.max_num_seqs:
        raise ProtocolViolation(f"a plan names a row outside 0..{batch.max_num_seqs - 1}: {rows.tolist()}")
    is_other = ~batch.is_used[rows] | (batch.run[rows] != runs)
    _raise_first(batch, planned, is_other, "names a run that the row does not hold")


def _check(batch: InputBatch, planned: PlannedRows, known_ends: Int32s) -> None:
    """known_ends: [n], behind those of its positions that are no drafts."""
    _check_runs(batch, planned)
    rows, starts, ends = planned.rows, planned.starts, planned.ends
    if not rows.size:
        return
    faults = (
        ((starts < 0) | (planned.num_tokens < 1), "computes no token"),
        (known_ends > batch.num_known[rows], "computes a token that is not known"),
        (ends > batch.num_blocks[rows] * batch.block_size, "computes a token that has no block"),
        (planned.samples & (known_ends < batch.num_prompt_tokens[rows]), "samples inside the prompt"),
    )
    for is_faulty, what in faults:
        _raise_first(batch, planned, is_faulty, what)


def _raise_first(batch: InputBatch, planned: PlannedRows, is_faulty: NDArray[np.bool_], what: str) -> None:
    if is_faulty.any():
        i = int(is_faulty.argmax())
        row = planned.rows[i]
        raise ProtocolViolation(
            f"row {row} (run {planned.runs[i]}, positions {planned.starts[i]}..{planned.ends[i] - 1}) {what}: it holds "
            f"run {batch.run[row]} with {batch.num_known[row]} tokens, {batch.num_blocks[row]} blocks"
        )
