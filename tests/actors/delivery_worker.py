"""The verifying worker of the scheduler's tests, with steps that raise."""

from __future__ import annotations

import msgspec
import numpy as np

from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.request import RequestKey
from callboard.tests.scheduling.fake_worker import FakeWorker, ints


class Troubles:
    """What raises, whoever is the worker."""

    def __init__(self) -> None:
        self.raises_at: dict[RequestKey, int] = {}
        """A step that samples the output token of this index raises, each time."""
        self.blamed: set[RequestKey] = set()
        """Requests that stood alone in a step that raised."""


class StumblingWorker(FakeWorker):
    """After a step that raised, plans are void until a fresh one comes, which clears all rows."""

    def __init__(
        self, limits: SchedulerLimits, admits: dict[RequestKey, Admit], epoch: int, troubles: Troubles
    ) -> None:
        super().__init__(limits, admits, epoch)
        self.troubles = troubles
        self.raises_next = False
        """The next step raises, whatever it is."""
        self.is_void = False

    def work(self, encoded: bytes, now_ns: int) -> StepResult:
        plan = msgspec.msgpack.decode(encoded, type=StepPlan)
        if plan.is_fresh:
            assert self.is_void, "a fresh plan, but no step has failed"
            self.rows.clear()
            self.is_void = False
        if self.is_void:
            return self._yields_nothing(plan, StepOutcome.VOID)
        if self._raises(plan):
            self.is_void, self.raises_next = True, False
            return self._yields_nothing(plan, StepOutcome.FAILED)
        return super().work(encoded, now_ns)

    def _raises(self, plan: StepPlan) -> bool:
        keys = self.keys | {new.run: (new.request_id, new.choice) for new in plan.new_rows}
        runs = np.frombuffer(plan.runs, "<i8").tolist()
        samples = np.frombuffer(plan.samples, np.bool_).tolist()
        raises = self.raises_next
        for run, start, count, is_sampled in zip(runs, ints(plan.starts), ints(plan.num_tokens), samples, strict=True):
            key = keys[run]
            index = start + count - len(self.admits[key].prompt_token_ids)
            raises |= is_sampled and self.troubles.raises_at.get(key) == index
        if raises and len(runs) == 1:
            self.troubles.blamed.add(keys[runs[0]])
        return raises

    def _yields_nothing(self, plan: StepPlan, outcome: StepOutcome) -> StepResult:
        assert plan.epoch == self.epoch
        assert self.last_step is None or plan.step == self.last_step + 1, "a plan was lost"
        self.last_step = plan.step
        error = "planted" if outcome is StepOutcome.FAILED else ""
        return StepResult(plan.epoch, plan.step, b"", b"", b"", 0, 0, outcome=outcome, error=error)
