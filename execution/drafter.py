"""The worker's own proposer beside the persistent batch: it is told which requests come and go."""

from __future__ import annotations

import numpy as np

from ..mailbox.messages.steps import StepPlan
from ..speculative.proposer import Proposer
from .input_batch import InputBatch


class Drafter:
    """Follows the rows of a batch for a proposer, if there is one."""

    def __init__(self, batch: InputBatch, proposer: Proposer | None) -> None:
        self._batch, self.proposer = batch, proposer

    def apply(self, plan: StepPlan) -> None:
        """The batch has applied the plan."""
        if self.proposer is None:
            return
        if plan.removed_rows:
            self.proposer.forget(np.frombuffer(plan.removed_rows, np.int32))
        for new in plan.new_rows:
            self.proposer.follow(new.row, len(new.token_ids) // 4, new.sharing_key or None)

    def clear(self) -> None:
        """All rows will be forgotten."""
        if self.proposer is not None:
            self.proposer.forget(np.flatnonzero(self._batch.is_used).astype(np.int32))
