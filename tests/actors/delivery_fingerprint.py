"""The state of a `World` as one number: two worlds with the same number behave alike from here on.

What cannot change behaviour is left out or renamed, or equal states would look different: counters and statistics,
names of blocks (their number counts), absolute runs, steps and epochs (their distance from the newest counts).
"""

from __future__ import annotations

import codecs
from array import array
from collections import deque
from enum import Enum
from typing import Any

import msgspec
import numpy as np

from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.mailbox import Inbox
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.scheduling.request import Request
from callboard.tests.actors.delivery_parts import Threads, Wire
from callboard.tests.actors.delivery_worker import CallBoard, ResultBoard, Worker
from callboard.tests.actors.delivery_world import World
from callboard.text import Tokenizer

_PLAIN = (type(None), bool, int, float, str, bytes)
_IN_ROWS = ("_rows", "kept_token_ids")
_FIXED = ("eos_token_ids", "stop_token_ids", "end_ids")
_TIMES = ("rank", "queued_ns", "first_row_ns")
"""Of a request under the policy that does not look at its rank."""
_NO_BEHAVIOUR = {"faults", "_tokenizer", "_encoder", "_progress"}
_encode = msgspec.msgpack.Encoder().encode
_plans = msgspec.msgpack.Decoder(StepPlan)
_results = msgspec.msgpack.Decoder(StepResult)


def fingerprint(world: World) -> int:
    """A hash of everything that decides what can happen next."""
    freezer = _Freezer(world)
    state: list[Any] = [world.num_deaths, world.num_aborts, world.num_stumbles]
    for place in world.places.values():
        actor = place.actor
        state.append((place.name, freezer.freeze(actor), freezer.freeze(place.control)))
    state.append(tuple((ends, freezer.freeze(wire)) for ends, wire in world.wires.items()))
    state.append(tuple((death.name, tuple(sorted(death.waited_for)), death.suspects) for death in world.deaths))
    state.append(freezer.freeze(world.call_board))
    state.append(freezer.freeze(world.result_board))
    state.append(tuple(freezer.reader(reader) for reader in world.readers))
    state.append(tuple(sorted(world.doomed)))
    return hash(tuple(state))


class _Freezer:
    """Turns objects into tuples; an object met again is named by the order of its first visit."""

    def __init__(self, world: World) -> None:
        self.visited: dict[int, int] = {}
        scheduler = world.scheduler
        self.last_run = 0 if scheduler is None else scheduler._state._last_run
        self.next_step = 0 if scheduler is None else scheduler._next_step

    def freeze(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, msgspec.Struct):
            return _encode(value)
        if isinstance(value, tuple | list | deque):
            return tuple([self.freeze(item) for item in value])
        if isinstance(value, dict):
            return tuple([(key, self.freeze(item)) for key, item in value.items()])
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, set | frozenset):
            return tuple(sorted(value))
        if isinstance(value, np.ndarray | array):
            return value.tobytes()
        if isinstance(value, codecs.IncrementalDecoder):
            return value.getstate()
        if not type(value).__module__.startswith("callboard") or isinstance(value, Tokenizer):
            return None
        if id(value) in self.visited:
            return self.visited[id(value)]
        self.visited[id(value)] = len(self.visited)
        return self.object(value)

    def object(self, value: Any) -> Any:
        match value:
            case Inbox():
                return self.freeze(value._waiting)
            case Sender():
                return self.freeze(value._kept)
            case Wire():
                return (self.freeze(value.messages), value._inbox is not None)
            case Threads():
                return tuple([self.freeze(args) for _, _, args in value.waiting])
            case CallBoard():
                return tuple([self.plan(_plans.decode(plan)) for plan in value.plans])
            case ResultBoard():
                return tuple([self.result(_results.decode(result)) for result in (*value.silent, *value.results)])
            case Worker():
                return self.worker(value)
            case Request():
                return self.request(value)
            case SchedulerActor():
                return (self.freeze(value._events), value._call_board is None, self.scheduler(value._scheduler))
        fields = vars(value) if hasattr(value, "__dict__") else {name: getattr(value, name) for name in value.__slots__}
        return tuple([self.freeze(field) for name, field in fields.items() if name not in _NO_BEHAVIOUR])

    def scheduler(self, scheduler: Any) -> Any:
        state = scheduler._state
        return (
            scheduler._epoch is None,
            self.freeze(sorted(state.waiting.values(), key=state.policies.order.rank)),
            self.freeze(list(state.running.values())),
            state.pool.num_free,
            tuple(state.rows._free),
            tuple(state.rows._removed),
            tuple([request.key for request in state.steps.requests_in_flight()]),
            state.is_fresh_due,
            self.freeze(state.trial),
            self.freeze(state.outbox._deltas),
            self.freeze(state.outbox._refused),
        )

    def request(self, request: Request) -> Any:
        left_out = ("run", "block_ids", "block_keys", "sampling", "worker_sampling", *_IN_ROWS, *_FIXED, *_TIMES)
        return (
            self.run(request.run),
            len(request.block_ids),
            self.freeze(request.token_ids),
            self.row(request),
            *[self.freeze(getattr(request, name)) for name in request.__slots__ if name not in left_out],
        )

    def row(self, request: Request) -> Any:
        """What stands of a running request in the arrays."""
        rows, row = request._rows, request.row
        if rows is None or row is None:
            return None
        arrays = (rows.num_computed, rows.num_expected, rows.next_full, rows.num_sent, rows.is_watched)
        return tuple(int(array[row]) for array in arrays)

    def run(self, run: int | None) -> int | None:
        return None if run is None else self.last_run - run

    def runs(self, runs: bytes) -> tuple[int, ...]:
        return tuple(self.last_run - run for run in np.frombuffer(runs, "<i8").tolist())

    def plan(self, plan: StepPlan) -> Any:
        new = tuple((row.row, self.run(row.run), row.request_id, row.choice, row.token_ids) for row in plan.new_rows)
        where = (plan.removed_rows, plan.rows, plan.starts, plan.num_tokens, plan.samples, plan.block_rows)
        return (plan.is_fresh, new, self.runs(plan.runs), *where)

    def result(self, result: StepResult) -> Any:
        return (result.outcome, self.runs(result.runs), result.positions, result.token_ids)

    def worker(self, worker: Worker) -> Any:
        rows = [(index, self.run(row.run), tuple(row.token_ids)) for index, row in worker.rows.items()]
        return (worker.is_void, worker.num_to_fail, *rows)

    def reader(self, reader: Any) -> Any:
        return (
            reader.is_closed,
            reader.is_lost,
            reader.is_aborted,
            reader.has_stopped_reading,
            reader.error is None,
            tuple((tuple(answer.token_ids), answer.text, answer.finish is None) for answer in reader.answers),
        )
