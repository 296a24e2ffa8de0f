"""A step plan in the making: the rows that run come as arrays, the new ones one by one behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..mailbox.messages.steps import NewRow, StepPlan
from .limits import SchedulerLimits
from .request import Request
from .row_arrays import Bools, Int32s, RowArrays, RowIndexes
from .step_log import PlannedStep

T = TypeVar("T", bound=np.generic)


class Share(NamedTuple):
    """What n rows compute in a step; each holds blocks for it."""

    requests: Sequence[Request]
    """[n]"""
    rows: RowIndexes
    """[n]"""
    starts: Int32s
    """[n]: what it has computed"""
    num_tokens: Int32s
    """[n], each >= 1: the positions from there on"""
    samples: Bools
    """[n]: it yields a token or more"""
    num_drafts: Int32s | None = None
    """[n]: of its tokens so many, the last ones, are drafts; None: there are none"""
    draft_ids: Sequence[int] = ()
    """[sum(num_drafts)]"""


class PlanBuilder:
    """Keeps the token budget of one step and the rows that share it."""

    def __init__(self, limits: SchedulerLimits, rows: RowArrays[Request]) -> None:
        self.budget = limits.max_num_batched_tokens
        """Tokens left."""
        self._arrays = rows
        self._plan_tokens_left = limits.plan_tokens
        self._shares: list[Share] = []
        self._has_drafts = False
        self._new_rows: list[NewRow] = []
        self._block_rows = self._block_ids = b""

    @property
    def is_empty(self) -> bool:
        """Nothing would be computed."""
        return not self._shares

    def schedule(self, share: Share) -> None:
        """Rows compute their next positions, and are moved on."""
        arrays, rows = self._arrays, share.rows
        self.budget -= int(np.add.reduce(share.num_tokens))
        assert self.budget >= 0, "a plan has more tokens than its budget"
        self._shares.append(share)
        self._has_drafts |= share.num_drafts is not None
        arrays.num_computed[rows] = share.starts + share.num_tokens
        arrays.num_expected[rows] += share.samples

    def append_blocks(self, rows: RowIndexes, num_blocks: Int32s, block_ids: Sequence[int]) -> None:
        """Each of `rows`, which the worker has, gets the next `num_blocks[i]` of the blocks."""
        self._block_rows = np.repeat(rows, num_blocks).astype("<i4").tobytes()
        self._block_ids = np.array(block_ids, dtype="<i4").tobytes()

    def can_place(self, request: Request) -> bool:
        """One more new row fits into the plan, with its known tokens and the entries of its sampling parameters; a
        first one always does."""
        return not self._new_rows or request.num_plan_tokens <= self._plan_tokens_left

    def place(self, request: Request, num_tokens: int) -> None:
        """A request that has just taken its row, with all its blocks, computes its next `num_tokens` positions."""
        assert request.row is not None and request.run is not None
        self._plan_tokens_left -= request.num_plan_tokens
        self._new_rows.append(
            NewRow(
                row=request.row,
                run=request.run,
                request_id=request.key[0],
                choice=request.key[1],
                attempt=request.attempt,
                num_prompt_tokens=request.num_prompt_tokens,
                token_ids=request.token_ids.tobytes(),
                block_ids=np.array(request.block_ids, dtype="<i4").tobytes(),
                sampling=request.row_sampling,
                first_output_index=request.first_output_index,
                is_constrained=bool(request.grammar_key),
            )
        )
        samples = num_tokens == request.num_uncomputed_tokens
        row = np.array([request.row], np.intp)
        start, count = np.array([request.num_computed_tokens], np.int32), np.array([num_tokens], np.int32)
        self.schedule(Share([request], row, start, count, np.array([samples])))

    def build(
        self, epoch: int, step: int, now_ns: int, removed_rows: Sequence[int], is_fresh: bool
    ) -> tuple[StepPlan, PlannedStep]:
        """The finished plan, and what is kept of it until its result comes; `removed_rows` were freed since the last
        plan; `is_fresh`: a step failed since."""
        shares = self._shares
        rows = _joined([share.rows for share in shares])
        samples = _joined([share.samples for share in shares])
        row_bytes, run_bytes = self._arrays.bytes_of(rows)
        num_drafts: Int32s | None = None
        draft_ids = b""
        if self._has_drafts:
            num_drafts = _joined([_drafts_of(share) for share in shares])
            draft_ids = np.array([token_id for share in shares for token_id in share.draft_ids], np.int32).tobytes()
        requests = shares[0].requests if len(shares) == 1 else [r for share in shares for r in share.requests]
        plan = StepPlan(
            epoch=epoch,
            step=step,
            now_ns=now_ns,
            new_rows=self._new_rows,
            removed_rows=np.array(removed_rows, np.int32).tobytes() if removed_rows else b"",
            rows=row_bytes,
            runs=run_bytes,
            starts=_joined([share.starts for share in shares]).tobytes(),
            num_tokens=_joined([share.num_tokens for share in shares]).tobytes(),
            samples=samples.tobytes(),
            block_rows=self._block_rows,
            block_ids=self._block_ids,
            is_fresh=is_fresh,
            num_drafts=b"" if num_drafts is None else num_drafts.tobytes(),
            draft_ids=draft_ids,
        )
        num_changes = self._arrays.num_changes
        if np.count_nonzero(samples) == len(samples):
            return plan, PlannedStep(step, run_bytes, requests, rows, run_bytes, num_changes, num_drafts)
        drafts = None if num_drafts is None else num_drafts[samples]
        yielding_runs = self._arrays.run[rows[samples]].tobytes()
        return plan, PlannedStep(step, run_bytes, requests, rows[samples], yielding_runs, num_changes, drafts)


def _drafts_of(share: Share) -> Int32s:
    return np.zeros(len(share.rows), np.int32) if share.num_drafts is None else share.num_drafts


def _joined(arrays: Sequence[npt.NDArray[T]]) -> npt.NDArray[T]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
