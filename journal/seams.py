"""What a journal needs of a scheduler beyond `step`."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol, runtime_checkable

from ..mailbox.messages.requests import RequestLedger
from ..mailbox.messages.steps import StepPlan
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event
from ..scheduling.statistics import SchedulerStatistics


class Replayable(Protocol):
    """What is replayed."""

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None: ...

    def collect(self, blocked: Container[str] = ()) -> Outgoing: ...

    def check_integrity(self) -> Sequence[object]: ...

    def statistics(self) -> SchedulerStatistics: ...


@runtime_checkable
class TakesSnapshots(Protocol):
    """A scheduler whose whole state can be written down: what a later file of a journal begins with."""

    def snapshot(self) -> bytes: ...


@runtime_checkable
class KeepsLedgers(Protocol):
    """A scheduler that says where the time of a request went."""

    def explain(self, request_id: str) -> tuple[RequestLedger, ...]: ...
