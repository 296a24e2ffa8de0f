"""Columns back into calls."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator

import msgspec

from ..mailbox.messages.steps import StepPlan, StepResult
from ..scheduling.events import Event, WorkerAttached, WorkerGone
from .packer import take_plan
from .plan_rows import expected_rows
from .records import Calls, EventKind


class ReadCall(msgspec.Struct):
    """One call of `Scheduler.step` as it was recorded."""

    now_ns: int
    events: list[Event]
    """Results that had what their plans asked for have it again."""
    has_plan: bool
    crc: int = 0
    """Of the chain, this plan included."""
    num_rows: int = 0
    num_new_rows: int = 0


class Unpacker:
    """Gives calls back, one by one; whoever replays them tells it each plan, before it asks for the next call."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[StepPlan, bytes]] = deque()

    def planned(self, plan: StepPlan) -> None:
        """The replayed scheduler made this plan."""
        self._in_flight.append((plan, b""))

    def calls(self, record: Calls) -> Iterator[ReadCall]:
        """The calls of the record. Raises ValueError if a result has no plan whose fields could be filled in."""
        cursor = _Cursor(record)
        plans = zip(record.plan_calls, array("I", record.crcs), record.num_rows, record.num_new_rows, strict=True)
        made = {place: numbers for place, *numbers in plans}
        for place, (now_ns, num_events) in enumerate(zip(array("q", record.now_ns), record.num_events, strict=True)):
            call = ReadCall(now_ns, [self._next_event(cursor) for _ in range(num_events)], place in made)
            if call.has_plan:
                call.crc, call.num_rows, call.num_new_rows = made[place]
            yield call

    def _next_event(self, cursor: _Cursor) -> Event:
        kind = next(cursor.kinds)
        if kind == EventKind.PLAIN:
            return self._plain_result(cursor)
        event = next(cursor.events)
        if isinstance(event, WorkerGone | WorkerAttached):
            self._in_flight.clear()
        if not isinstance(event, StepResult):
            return event
        plan = take_plan(self._in_flight, event)
        if kind == EventKind.WHOLE:
            return event
        if plan is None:
            raise ValueError(f"the result of step {event.step} has no plan in flight")
        runs, positions = expected_rows(plan)
        return msgspec.structs.replace(event, runs=runs, positions=positions)

    def _plain_result(self, cursor: _Cursor) -> StepResult:
        if not self._in_flight:
            raise ValueError("a result has no plan in flight")
        plan, _ = self._in_flight.popleft()
        runs, positions = expected_rows(plan)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=runs,
            positions=positions,
            token_ids=next(cursor.token_ids),
            start_ns=next(cursor.start_ns),
            end_ns=next(cursor.end_ns),
            num_plans_waiting=next(cursor.num_plans_waiting),
        )


class _Cursor:
    """Places in the columns."""

    def __init__(self, record: Calls) -> None:
        self.kinds = iter(record.kinds)
        self.events = iter(record.events)
        self.start_ns = iter(array("q", record.start_ns))
        self.end_ns = iter(array("q", record.end_ns))
        self.num_plans_waiting = iter(record.num_plans_waiting)
        self.token_ids = iter(record.token_ids)
