"""The fake engine with a journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from callboard.journal.files import files_of
from callboard.journal.reader import JournalFile
from callboard.journal.replay import Replay
from callboard.journal.writer import JournalWriter
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.events import Event
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_engine import Engine


class RecordedScheduler(Scheduler):
    """Journals its calls, as the actor does. `plans`: encoded, of all its life."""

    def __init__(self, limits: SchedulerLimits, writer: JournalWriter) -> None:
        super().__init__(limits)
        self.writer = writer
        self.plans: list[bytes] = []

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        self.writer.take(now_ns, events)
        plan = super().step(now_ns, events)
        if plan is not None:
            encoded = msgspec.msgpack.encode(plan)
            self.plans.append(encoded)
            self.writer.planned(plan, encoded)
        self.writer.write_due()
        return plan

    def check_integrity(self) -> list[int]:
        self.writer.checked()
        return super().check_integrity()


def recorded_scheduler(limits: SchedulerLimits, stem: Path, max_bytes: int) -> RecordedScheduler:
    """Its files can be replayed one by one."""
    writer = JournalWriter(stem, max_bytes, limits, 0, lambda: scheduler.snapshot())
    scheduler = RecordedScheduler(limits, writer)
    return scheduler


def recorded_engine(limits: SchedulerLimits, stem: Path, max_bytes: int = 1 << 24) -> tuple[Engine, RecordedScheduler]:
    """An engine with a worker, whose scheduler writes a journal."""
    engine = Engine(limits, is_attached=False)
    scheduler = recorded_scheduler(limits, stem, max_bytes)
    engine.scheduler = scheduler
    engine.attach()
    return engine, scheduler


def opened(stem: Path) -> list[JournalFile]:
    return [JournalFile(path) for _, path in sorted(files_of(stem).items())]


def replayed(stem: Path) -> Replay:
    """A replay of all files of a journal."""
    replay = Replay()
    replay.run(opened(stem))
    return replay
