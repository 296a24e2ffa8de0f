"""A step plan in the making: the rows that run come as arrays, the new ones one by one behind them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..mailbox.messages.steps import NO_DRAFTING, NewRow, StepPlan
from ..topology.boards import SHARING_KEY_CHARS
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
    """[n]: behind these tokens it verifies so many drafts, or, if the worker guesses them, up to so many; None: none"""
    draft_ids: Sequence[int] | None = None
    """[sum(num_drafts)]; None: the worker guesses"""
    draft_ends: Int32s | None = None
    """[n]: if the worker guesses, what `StepPlan.draft_ends` says; 0: the row cannot draft, and stands where `starts`
    says"""


class PlanBuilder:
    """Keeps the token budget of one step and the rows that share it."""

    def __init__(self, limits: SchedulerLimits, rows: RowArrays[Request]) -> None:
        self.budget = limits.max_num_batched_tokens
        """Tokens left."""
        self.num_tokens = 0
        """To be computed, but for drafts that the worker guesses: there may be fewer than it may guess."""
        self._arrays = rows
        self._plan_tokens_left = limits.plan_tokens
        self._has_proposer = limits.max_drafts > 0
        self._shares: list[Share] = []
        self._num_given_drafts = 0
        self._has_guesses = False
        self._new_rows: list[NewRow] = []
        self._block_rows = self._block_ids = b""

    @property
    def is_empty(self) -> bool:
        """Nothing would be computed."""
        return not self._shares

    def schedule(self, share: Share) -> None:
        """Rows compute their next positions, and are moved on."""
        arrays, rows = self._arrays, share.rows
        num_tokens = int(np.add.reduce(share.num_tokens))
        if share.num_drafts is not None:
            arrays.expect_drafts(rows, share.num_drafts)
            self.budget -= int(np.add.reduce(share.num_drafts))
            self._num_given_drafts += len(share.draft_ids or ())
            self._has_guesses |= share.draft_ends is not None
        self.budget -= num_tokens
        self.num_tokens += num_tokens + len(share.draft_ids or ())
        assert self.budget >= 0, "a plan has more tokens than its budget"
        self._shares.append(share)
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
                sharing_key=_sharing_key(request.cache_salt) if self._has_proposer else "",
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
        num_tokens = _joined([share.num_tokens for share in shares])
        num_drafts: Int32s | None = None
        if self._num_given_drafts or self._has_guesses:
            num_drafts = _joined([_drafts_of(share) for share in shares])
            num_tokens = num_tokens if self._has_guesses else num_tokens + num_drafts
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
            num_tokens=num_tokens.tobytes(),
            samples=samples.tobytes(),
            block_rows=self._block_rows,
            block_ids=self._block_ids,
            is_fresh=is_fresh,
            **self._draft_fields(num_drafts),
        )
        num_changes = self._arrays.num_changes
        if np.count_nonzero(samples) == len(samples):
            return plan, PlannedStep(
                step, run_bytes, requests, rows, run_bytes, num_changes, self.num_tokens, num_drafts
            )
        drafts = None if num_drafts is None else num_drafts[samples]
        yielding_runs = self._arrays.run[rows[samples]].tobytes()
        return plan, PlannedStep(
            step, run_bytes, requests, rows[samples], yielding_runs, num_changes, self.num_tokens, drafts
        )

    def _draft_fields(self, num_drafts: Int32s | None) -> dict[str, bytes]:
        """What the plan says of drafts, in its own fields."""
        if num_drafts is None:
            return {}
        if not self._has_guesses:
            ids = [token_id for share in self._shares for token_id in share.draft_ids or ()]
            return {"num_drafts": num_drafts.tobytes(), "draft_ids": np.array(ids, np.int32).tobytes()}
        ends = _joined([_draft_ends_of(share) for share in self._shares])
        return {"max_drafts": np.where(ends, num_drafts, np.int32(NO_DRAFTING)).tobytes(), "draft_ends": ends.tobytes()}


def _sharing_key(cache_salt: str) -> str:
    """Requests share guesses as they share blocks: within a salt. It is as long for every salt."""
    return blake2b(cache_salt.encode(), digest_size=SHARING_KEY_CHARS // 2).hexdigest()


def _draft_ends_of(share: Share) -> Int32s:
    return np.zeros(len(share.rows), np.int32) if share.draft_ends is None else share.draft_ends


def _drafts_of(share: Share) -> Int32s:
    return np.zeros(len(share.rows), np.int32) if share.num_drafts is None else share.num_drafts


def _joined(arrays: Sequence[npt.NDArray[T]]) -> npt.NDArray[T]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
