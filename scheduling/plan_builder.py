"""A step plan in the making: rows are added one by one, the arrays are built once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..mailbox.messages.steps import NewRow, StepPlan
from .limits import SchedulerLimits
from .request import Request


class PlanBuilder:
    """Keeps the token budget of one step and the rows that share it."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.budget = limits.max_num_batched_tokens
        """Tokens left."""
        self.requests: list[Request] = []
        """Of the rows to compute, in their order."""
        self._plan_tokens_left = limits.plan_tokens
        self._new_rows: list[NewRow] = []
        self._rows: list[int] = []
        self._runs: list[int] = []
        self._starts: list[int] = []
        self._num_tokens: list[int] = []
        self._samples: list[bool] = []
        self._block_rows: list[int] = []
        self._block_ids: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Nothing would be computed."""
        return not self._rows

    def can_place(self, request: Request) -> bool:
        """One more new row fits into the plan, with its known tokens and the entries of its sampling parameters; a
        first one always does."""
        return not self._new_rows or request.num_plan_tokens <= self._plan_tokens_left

    def place(self, request: Request) -> None:
        """The request, with all its blocks, is new in its row."""
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
                token_ids=_int32(request.token_ids),
                block_ids=_int32(request.block_ids),
                sampling=request.row_sampling,
            )
        )

    def append_blocks(self, request: Request, block_ids: Sequence[int]) -> None:
        """A row that the worker has gets more blocks."""
        assert request.row is not None
        self._block_rows.extend([request.row] * len(block_ids))
        self._block_ids.extend(block_ids)

    def schedule(self, request: Request, num_tokens: int) -> None:
        """The next `num_tokens` positions of a running request, which holds blocks for them. Moves the request on."""
        assert request.row is not None and request.run is not None
        assert 1 <= num_tokens <= min(self.budget, request.num_uncomputed_tokens)
        samples = num_tokens == request.num_uncomputed_tokens
        self.requests.append(request)
        self._rows.append(request.row)
        self._runs.append(request.run)
        self._starts.append(request.num_computed_tokens)
        self._num_tokens.append(num_tokens)
        self._samples.append(samples)
        self.budget -= num_tokens
        request.num_computed_tokens += num_tokens
        request.num_in_flight += samples

    def build(self, epoch: int, step: int, now_ns: int, removed_rows: Sequence[int], is_fresh: bool) -> StepPlan:
        """The finished plan; `removed_rows` were freed since the last one; `is_fresh`: a step failed since."""
        return StepPlan(
            epoch=epoch,
            step=step,
            now_ns=now_ns,
            new_rows=self._new_rows,
            removed_rows=_int32(removed_rows),
            rows=_int32(self._rows),
            runs=np.array(self._runs, dtype="<i8").tobytes(),
            starts=_int32(self._starts),
            num_tokens=_int32(self._num_tokens),
            samples=np.array(self._samples, dtype=np.bool_).tobytes(),
            block_rows=_int32(self._block_rows),
            block_ids=_int32(self._block_ids),
            is_fresh=is_fresh,
        )


def _int32(values: Sequence[int]) -> bytes:
    return np.array(values, dtype="<i4").tobytes()
