"""The steps of one epoch that a worker has launched and not yet reported, and what a failure among them means."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from typing import NamedTuple, Protocol

from ..errors import ActorFault, ProtocolViolation
from ..execution.pending_step import EndedStep, HeldStep, PendingStep, ended_here
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..topology.boards import MAX_ERROR_CHARS


class Runner(Protocol):
    """What runs plans: a model on a device."""

    def launch(self, plan: StepPlan) -> PendingStep:
        """Begin a step behind those launched before. Raises ProtocolViolation for a plan that contradicts the rows;
        anything else is a failed step, as is what `result` raises."""
        ...

    def warm_up(self) -> None: ...

    def use_idle_time(self) -> bool:
        """Called while there is no plan and nothing is launched: do a small part of what can be done ahead of its
        need. False: there is nothing to do."""
        ...

    def clear(self) -> None:
        """Forget all rows; nothing is launched then."""
        ...


class _Launched(NamedTuple):
    plan: StepPlan
    step: PendingStep


class StepPipeline:
    """Results come out in the order of the plans, one for each. Behind a step that failed nothing counts until a fresh
    plan, for later plans build on it: what was launched already is waited for and is void."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._launched: deque[_Launched] = deque()
        self._has_failed = False

    @property
    def num_pending(self) -> int:
        """Steps launched whose results were not collected."""
        return len(self._launched)

    def launch(self, plan: StepPlan) -> None:
        """Raises ActorFault, which no other batch would be spared."""
        if plan.is_fresh:
            if self._launched:
                raise ProtocolViolation(f"plan {plan.step} is fresh, but {len(self._launched)} steps are in flight")
            self._runner.clear()
            self._has_failed = False
        assert not self.is_held
        self._launched.append(_Launched(plan, self._begin(plan)))

    @property
    def is_held(self) -> bool:
        """Whether the newest step has yet to go on; until then nothing is launched behind it."""
        return bool(self._launched) and _is_held(self._launched[-1].step)

    def go_on(self) -> bool:
        """Launch the rest of the newest step, which is held, unless that would have to wait; whether it is launched.

        The results before it are published. Raises ActorFault."""
        plan, step = self._launched[-1]
        assert isinstance(step, HeldStep)
        try:
            return step.go_on()
        except ActorFault:
            raise
        except Exception as error:  # as at a launch
            self._launched[-1] = _Launched(plan, EndedStep(self._fail(plan, error)))
            return True

    def is_oldest_done(self) -> bool:
        """Whether `collect` would not wait. Some step is pending."""
        return self._launched[0].step.is_done()

    @property
    def is_oldest_computed_here(self) -> bool:
        """Whether the oldest step has ended because this thread computes them: the next launch would hold its result
        up for as long as a step takes."""
        return bool(self._launched) and ended_here(self._launched[0].step)

    def collect(self) -> StepResult:
        """The oldest step's result, when it has ended. Raises ActorFault."""
        plan, step = self._launched.popleft()
        try:
            return step.result()
        except ActorFault:
            raise
        except Exception as error:  # the scheduler finds out whose it is
            failed = self._fail(plan, error)
            self._void_launched()
            return failed

    def _begin(self, plan: StepPlan) -> PendingStep:
        if self._has_failed:
            return EndedStep(_no_rows(plan, StepOutcome.VOID, ""))
        try:
            return self._runner.launch(plan)
        except ActorFault:
            raise
        except Exception as error:  # steps launched before it are not concerned
            return EndedStep(self._fail(plan, error))

    def _fail(self, plan: StepPlan, error: Exception) -> StepResult:
        self._has_failed = True
        traceback.print_exception(error, file=sys.stderr)
        return _no_rows(plan, StepOutcome.FAILED, f"{type(error).__name__}: {error}")

    def _void_launched(self) -> None:
        """The device is done with them before their results, which say that they do not count, are handed out."""
        launched, self._launched = self._launched, deque()
        for plan, step in launched:
            try:
                step.result()
            except ActorFault:
                raise
            except Exception:  # it built on the step that failed
                traceback.print_exc(file=sys.stderr)
            self._launched.append(_Launched(plan, EndedStep(_no_rows(plan, StepOutcome.VOID, ""))))


def _is_held(step: PendingStep) -> bool:
    return isinstance(step, HeldStep) and step.is_held


def _no_rows(plan: StepPlan, outcome: StepOutcome, error: str) -> StepResult:
    now_ns = time.monotonic_ns()
    return StepResult(
        epoch=plan.epoch,
        step=plan.step,
        runs=b"",
        positions=b"",
        token_ids=b"",
        start_ns=now_ns,
        end_ns=now_ns,
        outcome=outcome,
        error=error[:MAX_ERROR_CHARS],
    )
