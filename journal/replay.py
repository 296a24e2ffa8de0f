"""Runs the scheduler of a journal again, on the same inputs, and compares its plans with those that were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from ..errors import CallboardError, ConfigError
from ..mailbox.messages.steps import StepPlan
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler
from ..scheduling.statistics import SchedulerStatistics
from .plan_chain import PlanChain
from .reader import JournalFile
from .records import Calls, Checked
from .unpacker import ReadCall, Unpacker

_ENCODER = msgspec.msgpack.Encoder()
_PLAN_DECODER = msgspec.msgpack.Decoder(StepPlan)


class Difference(msgspec.Struct, frozen=True):
    """The first call whose replay did something else."""

    now_ns: int
    plan: StepPlan | None
    """That the replay made."""
    recorded: ReadCall
    """What is known of the recorded one: whether there was a plan, its checksum, and how many rows it had."""
    reason: str


class Observer(Protocol):
    """Is told of a replay, call by call."""

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        """The scheduler is about to get these."""

    def planned(self, plan: StepPlan) -> None:
        """It made this plan."""

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        """What it has for the tokenizers after the call."""


class Replay:
    """One scheduler's life, or what the files have of it. Stops at the first difference, or at a given step."""

    def __init__(
        self,
        *,
        make_scheduler: Callable[[SchedulerLimits], Scheduler] = Scheduler,
        restore_scheduler: Callable[[SchedulerLimits, bytes], Scheduler] = Scheduler.restore,
        observers: Sequence[Observer] = (),
        until_step: int | None = None,
    ) -> None:
        self.num_steps = 0
        """Plans that were made."""
        self.num_calls = 0
        self.scheduler: Scheduler | None = None
        self.difference: Difference | None = None
        self.statistics_before: SchedulerStatistics | None = None
        """Of the scheduler as it was where the first file begins."""
        self.now_ns = 0
        self.is_at_step = False
        """The plan `until_step` was made: it ended there."""
        self.ending = ""
        """Why a file could not be read to its end; empty if they all could."""
        self._make_scheduler, self._restore_scheduler = make_scheduler, restore_scheduler
        self._observers, self._until_step = observers, until_step
        self._chain = PlanChain()
        self._unpacker = Unpacker()

    def digest(self) -> str:
        """Over all plans, in hexadecimal digits: equal for equal plans."""
        return self._chain.digest().hex()

    def run(self, files: Sequence[JournalFile]) -> None:
        """Replay files that follow each other, from a new scheduler on, or from the snapshot in the first of them.

        Raises ConfigError if that has none though it does not begin a life, or one that cannot be restored.
        """
        self._begin(files[0])
        assert self.scheduler is not None
        self.statistics_before = self.scheduler.statistics()
        for file in files:
            if file is not files[0]:
                self._chain = PlanChain(self._chain.crc, self._chain.digest())
            for record in file:
                if not self._replay(record):
                    return
            if file.ending:
                self.ending = f"{file.path} is {file.ending}"
                return

    def _begin(self, file: JournalFile) -> None:
        header = file.header
        self.now_ns = header.now_ns
        self._chain = PlanChain(header.crc, header.digest)
        self._unpacker = Unpacker()
        if file.snapshot is not None:
            self.scheduler = self._restore_scheduler(file.limits, file.snapshot.state)
            for encoded in file.snapshot.plans:
                self._unpacker.planned(_PLAN_DECODER.decode(encoded))
            return
        if header.number:
            raise ConfigError(
                f"{file.path} goes on from an earlier file, number {header.number} of its scheduler's life, and has no "
                f"snapshot to begin from",
                advice="name the files before it, too, the first one first",
            )
        self.scheduler = self._make_scheduler(file.limits)

    def _replay(self, record: Calls | Checked) -> bool:
        """Go on with a record; False at the end."""
        assert self.scheduler is not None
        if isinstance(record, Checked):
            self.scheduler.check_integrity()
            return True
        before = self.num_steps
        for call in self._unpacker.calls(record):
            if not self._call(call):
                return False
        self._chain.add(record.crcs)
        if self.num_steps > before and self._chain.digest() != record.digest:
            raise ConfigError("the journal's own checksums of plans contradict each other", advice="it is damaged")
        return True

    def _call(self, call: ReadCall) -> bool:
        """Replay one call; False at the end."""
        assert self.scheduler is not None
        self.now_ns = call.now_ns
        for observer in self._observers:
            observer.events(call.now_ns, call.events)
        try:
            plan = self.scheduler.step(call.now_ns, call.events)
        except (CallboardError, AssertionError) as error:
            self.difference = Difference(call.now_ns, None, call, f"the scheduler raised {error!r}")
            return False
        self.num_calls += 1
        reason = self._compare(call, plan)
        if reason:
            self.difference = Difference(call.now_ns, plan, call, reason)
            return False
        if plan is not None:
            self.num_steps += 1
            self._unpacker.planned(plan)
            for observer in self._observers:
                observer.planned(plan)
        self._collect(call.now_ns)
        if plan is not None and plan.step == self._until_step:
            self.is_at_step = True
            return False
        return True

    def _compare(self, call: ReadCall, plan: StepPlan | None) -> str:
        """What is different; empty if nothing is."""
        if plan is None or not call.has_plan:
            if (plan is None) == (not call.has_plan):
                return ""
            return "no plan was made now" if plan is None else "no plan had been made then"
        crc = self._chain.link(plan, _ENCODER.encode(plan))
        return "" if crc == call.crc else "the plans differ"

    def _collect(self, now_ns: int) -> None:
        assert self.scheduler is not None
        has_more = True
        while has_more:
            outgoing = self.scheduler.collect()
            has_more = outgoing.has_more
            for observer in self._observers:
                observer.sent(now_ns, outgoing)


def runs_of(files: Sequence[JournalFile]) -> list[list[JournalFile]]:
    """The files in groups that follow each other, a scheduler's life each."""
    runs: list[list[JournalFile]] = []
    for file in files:
        if runs and file.follows(runs[-1][-1]):
            runs[-1].append(file)
        else:
            runs.append([file])
    return runs
