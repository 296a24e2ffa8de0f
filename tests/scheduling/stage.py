"""A scheduler on a stage: every call has its time, and the worker does what it is told when it is told."""

from __future__ import annotations

from collections import deque

import numpy as np

from callboard.mailbox.messages.requests import RequestLedger
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.mailbox.messages.transfers import LoadBlocks
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_rows import drafts_of, ints

TOKEN = 7
"""What the worker samples."""


class Stage:
    """Steps end when `end_step` says so; each row yields TOKEN."""

    def __init__(self, limits: SchedulerLimits, *, is_attached: bool = True) -> None:
        self.scheduler = Scheduler(limits)
        self.plans: deque[StepPlan] = deque()
        self.planned: list[StepPlan] = []
        self.loads: list[LoadBlocks] = []
        if is_attached:
            self.at(0, WorkerAttached(1))

    def at(self, now_ns: int, *events: Event) -> None:
        """Something happens; every plan that follows is made at once."""
        plan = self.scheduler.step(now_ns, events)
        while plan is not None:
            self.plans.append(plan)
            self.planned.append(plan)
            plan = self.scheduler.step(now_ns, ())
        self.loads += self.scheduler.collect().loads

    def end_step(self, now_ns: int, *events: Event, num_accepted: int = 0) -> None:
        """The oldest step in flight ends; of each row with drafts so many are accepted. `events` come behind its
        result, in the same call."""
        plan = self.plans.popleft()
        starts, counts = ints(plan.starts), ints(plan.num_tokens)
        runs, samples = np.frombuffer(plan.runs, "<i8"), np.frombuffer(plan.samples, np.bool_)
        drafts = [len(ids) for ids in drafts_of(plan)]
        yielding = np.flatnonzero(samples).tolist()
        num_sampled = [1 + min(num_accepted, drafts[i]) for i in yielding]
        result = StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=runs[samples].tobytes(),
            positions=np.array([starts[i] + counts[i] - drafts[i] for i in yielding], "<i4").tobytes(),
            token_ids=np.full(sum(num_sampled), TOKEN, "<i4").tobytes(),
            start_ns=now_ns,
            end_ns=now_ns,
            num_sampled=np.array(num_sampled, "<i4").tobytes() if any(drafts) else b"",
        )
        self.at(now_ns, result, *events)

    def fail_step(self, now_ns: int) -> None:
        """The oldest step in flight raises, and those behind it are not run."""
        outcome = StepOutcome.FAILED
        while self.plans and outcome is not None:
            plan = self.plans.popleft()
            result = StepResult(
                plan.epoch, plan.step, b"", b"", b"", now_ns, now_ns, outcome=outcome, error="RuntimeError: planted"
            )
            num_left = len(self.plans)
            self.at(now_ns, result)
            if len(self.plans) > num_left or not num_left:
                return
            outcome = StepOutcome.VOID

    def ledger(self, name: str, now_ns: int | None = None) -> RequestLedger:
        """Of a request with one choice."""
        (ledger,) = self.scheduler.explain(name, now_ns)
        return ledger
