"""Calls of the scheduler into columns. This is what a journal costs: all work is on batches of calls."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.events import Event, WorkerAttached, WorkerGone
from .plan_rows import all_as_expected, expected_rows, has_only_decodes
from .records import Calls, EventKind

DIGEST_BYTES = 16


class Call(NamedTuple):
    """One call of `Scheduler.step` and what it returned."""

    now_ns: int
    events: Sequence[Event]
    plan: StepPlan | None
    encoded: bytes
    """The plan's bytes; empty for None."""


class PlanChain:
    """A running checksum over plans: two chains that differ at one plan differ from there on."""

    def __init__(self, crc: int = 0, digest: bytes = b"") -> None:
        self.crc = crc
        self.seed = digest
        """What the digest began with."""
        self._hash = hashlib.blake2b(digest, digest_size=DIGEST_BYTES)

    def add(self, crcs: bytes) -> None:
        self._hash.update(crcs)

    def digest(self) -> bytes:
        return self._hash.digest()


class Packer:
    """Packs calls, batch after batch; it follows which plans are in flight."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        """Of the last call that was packed."""
        self.chain = PlanChain()
        self.in_flight: deque[tuple[StepPlan, bytes]] = deque()

    def pack(self, calls: Sequence[Call]) -> Calls:
        """The record of these calls, which follow those packed before."""
        before = (self.now_ns, self.chain.crc, self.in_flight.copy())
        batch = _Batch()
        self._pack(calls, batch, is_careful=False)
        if not all_as_expected(batch.trusted_plans, batch.trusted_positions):
            self.now_ns, self.chain.crc, self.in_flight = before
            batch = _Batch()
            self._pack(calls, batch, is_careful=True)
        crcs = batch.crcs.tobytes()
        self.chain.add(crcs)
        return Calls(
            now_ns=batch.now_ns,
            counts=batch.counts,
            kinds=bytes(batch.kinds),
            events=batch.events,
            start_ns=batch.start_ns,
            run_ns=batch.run_ns,
            num_plans_waiting=batch.num_plans_waiting,
            token_ids=batch.token_ids,
            crcs=crcs,
            num_rows=batch.num_rows,
            num_new_rows=batch.num_new_rows,
            digest=self.chain.digest(),
        )

    def _pack(self, calls: Iterable[Call], batch: _Batch, *, is_careful: bool) -> None:
        last_ns, crc, in_flight = self.now_ns, self.chain.crc, self.in_flight
        add_now, add_count, crc32 = batch.now_ns.append, batch.counts.append, zlib.crc32
        for now_ns, events, plan, encoded in calls:
            add_now(now_ns - last_ns)
            last_ns = now_ns
            for event in events:
                if type(event) is StepResult:
                    self._pack_result(event, now_ns, batch, is_careful)
                else:
                    batch.kinds.append(EventKind.WHOLE)
                    batch.events.append(event)
                    if isinstance(event, WorkerGone | WorkerAttached):
                        in_flight.clear()
            if plan is None:
                add_count(2 * len(events))
                continue
            add_count(2 * len(events) + 1)
            crc = crc32(encoded, crc)
            batch.crcs.append(crc)
            batch.num_rows.append(len(plan.rows) >> 2)
            batch.num_new_rows.append(len(plan.new_rows))
            in_flight.append((plan, encoded))
        self.now_ns, self.chain.crc = last_ns, crc

    def _pack_result(self, result: StepResult, now_ns: int, batch: _Batch, is_careful: bool) -> None:
        plan = take_plan(self.in_flight, result)
        if plan is None or result.outcome is not StepOutcome.DONE:
            is_expected = False
        elif has_only_decodes(plan) and not is_careful:
            is_expected = result.runs == plan.runs
            if is_expected:
                batch.trusted_plans.append(plan)
                batch.trusted_positions.append(result.positions)
        else:
            is_expected = (result.runs, result.positions) == expected_rows(plan)
        if not is_expected:
            batch.kinds.append(EventKind.WHOLE)
            batch.events.append(result)
        elif _has_only_tokens(result):
            batch.kinds.append(EventKind.PLAIN)
            batch.start_ns.append(result.start_ns - now_ns)
            batch.run_ns.append(result.end_ns - result.start_ns)
            batch.num_plans_waiting.append(result.num_plans_waiting)
            batch.token_ids.append(result.token_ids)
        else:
            batch.kinds.append(EventKind.STRIPPED)
            batch.events.append(msgspec.structs.replace(result, runs=b"", positions=b""))


class _Batch:
    """The columns of `Calls` while they grow."""

    def __init__(self) -> None:
        self.now_ns: list[int] = []
        self.counts: list[int] = []
        self.kinds = bytearray()
        self.events: list[Event] = []
        self.start_ns: list[int] = []
        self.run_ns: list[int] = []
        self.num_plans_waiting: list[int] = []
        self.token_ids: list[bytes] = []
        self.crcs = array("I")
        self.num_rows: list[int] = []
        self.num_new_rows: list[int] = []
        self.trusted_plans: list[StepPlan] = []
        """Of plain results whose positions are still to be compared, all at once."""
        self.trusted_positions: list[bytes] = []


def take_plan(in_flight: deque[tuple[StepPlan, bytes]], result: StepResult) -> StepPlan | None:
    """The plan that this is the result of, which is in flight no more; None if it is not the oldest one's."""
    if not in_flight:
        return None
    plan = in_flight[0][0]
    if result.step != plan.step or result.epoch != plan.epoch:
        return None
    in_flight.popleft()
    return plan


def _has_only_tokens(result: StepResult) -> bool:
    return not (
        result.logprob_rows
        or result.logprobs
        or result.top_ids
        or result.top_logprobs
        or result.num_sampled
        or result.prompt_logprobs
        or result.error
    )
