"""The plans that a worker ran, out of the journal of its scheduler, and what it said of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import ConfigError
from ..journal.files import files_of
from ..journal.reader import JournalFile
from ..journal.replay import Replay
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event
from ..scheduling.limits import SchedulerLimits


class RanStep(msgspec.Struct, frozen=True):
    """A plan and its result, which has the times of the step."""

    plan: StepPlan
    result: StepResult


class PlanStream(msgspec.Struct, frozen=True):
    """All steps of one worker, in the order in which it ran them, for a worker of these limits."""

    limits: SchedulerLimits
    steps: list[RanStep]


class _Collector:
    """Observer of a replay."""

    def __init__(self) -> None:
        self.steps: list[RanStep] = []
        self._plans: dict[tuple[int, int], StepPlan] = {}

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        """Results come in the order in which their steps were run."""
        for event in events:
            if isinstance(event, StepResult):
                if event.epoch != 1 or event.outcome is not StepOutcome.DONE:
                    raise ConfigError("a step failed, or a worker died", advice="record a run in which nothing fails")
                self.steps.append(RanStep(self._plans.pop((event.epoch, event.step)), event))

    def planned(self, plan: StepPlan) -> None:
        """It made this plan."""
        self._plans[plan.epoch, plan.step] = plan

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        """It sent this: nothing to learn."""


def read_plan_stream(journal: Path) -> PlanStream:
    """From the first plan of a scheduler to its last result; `journal`: the path that its files begin with.

    Raises ConfigError if a step failed, the worker was another meanwhile, the journal's beginning is not there any
    more, or a plan is not what it was.
    """
    files = [JournalFile(path) for _, path in sorted(files_of(journal).items())]
    if not files or files[0].header.number:
        raise ConfigError(f"{journal} does not have a scheduler's first plans", advice="record a shorter run")
    collector = _Collector()
    replay = Replay(observers=(collector,))
    replay.run(files)
    if replay.difference is not None:
        raise ConfigError(
            f"{journal}: the replay differs from the run: {replay.difference.reason}",
            advice="read a journal with the version that wrote it",
        )
    return PlanStream(files[0].limits, collector.steps)
