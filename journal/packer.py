"""Calls of the scheduler into columns. This is what a journal costs: all work is on batches of calls."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections import deque
from collections.abc import Sequence

import msgspec

from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.events import Event, WorkerAttached, WorkerGone
from .plan_rows import all_as_expected, expected_rows
from .records import Calls, EventKind

DIGEST_BYTES = 16
_DONE = StepOutcome.DONE
_WHOLE, _PLAIN, _STRIPPED = int(EventKind.WHOLE), int(EventKind.PLAIN), int(EventKind.STRIPPED)

Call = tuple[int, Sequence[Event]]
"""(now_ns, events) of a call of `Scheduler.step`"""
Planned = tuple[int, StepPlan, bytes]
"""(index of the call that made it, plan, its bytes)"""


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

    def pack(self, calls: Sequence[Call], planned: Sequence[Planned]) -> Calls:
        """The record of these calls, which follow those packed before, and of the plans that they made."""
        before = self.in_flight.copy()
        batch = _Batch()
        self._pack_events(calls, planned, batch, is_careful=False)
        if not all_as_expected(batch.usual_plans, [result.positions for result in batch.usual]):
            self.in_flight = before
            batch = _Batch()
            self._pack_events(calls, planned, batch, is_careful=True)
        crcs = self._chain_plans(planned)
        times = [now_ns for now_ns, _ in calls]
        deltas = [now_ns - earlier_ns for earlier_ns, now_ns in zip([self.now_ns, *times], times, strict=False)]
        self.now_ns = times[-1] if times else self.now_ns
        plain = batch.plain
        return Calls(
            now_ns=deltas,
            counts=batch.counts,
            kinds=bytes(batch.kinds),
            events=batch.events,
            start_ns=[result.start_ns - now_ns for now_ns, result in plain],
            run_ns=[result.end_ns - result.start_ns for _, result in plain],
            num_plans_waiting=[result.num_plans_waiting for _, result in plain],
            token_ids=[result.token_ids for _, result in plain],
            crcs=crcs,
            num_rows=[len(plan.rows) >> 2 for _, plan, _ in planned],
            num_new_rows=[len(plan.new_rows) for _, plan, _ in planned],
            digest=self.chain.digest(),
        )

    def _chain_plans(self, planned: Sequence[Planned]) -> bytes:
        crc, crcs, crc32 = self.chain.crc, array("I"), zlib.crc32
        for _, _, encoded in planned:
            crc = crc32(encoded, crc)
            crcs.append(crc)
        self.chain.crc = crc
        column = crcs.tobytes()
        self.chain.add(column)
        return column

    def _pack_events(
        self, calls: Sequence[Call], planned: Sequence[Planned], batch: _Batch, *, is_careful: bool
    ) -> None:
        in_flight, add_count, add_kind = self.in_flight, batch.counts.append, batch.kinds.append
        add_plain, add_usual, add_plan = batch.plain.append, batch.usual.append, batch.usual_plans.append
        plans = iter(planned)
        index, plan, encoded = next(plans, _NO_PLAN)
        for place, (now_ns, events) in enumerate(calls):
            for event in events:
                if type(event) is StepResult:
                    if in_flight and not is_careful and _is_usual(event, in_flight[0][0]):
                        add_kind(_PLAIN)
                        add_plain((now_ns, event))
                        add_usual(event)
                        add_plan(in_flight.popleft()[0])
                        continue
                    add_kind(self._pack_result(event, now_ns, batch))
                else:
                    add_kind(_WHOLE)
                    batch.events.append(event)
                    if isinstance(event, WorkerGone | WorkerAttached):
                        in_flight.clear()
            if place != index:
                add_count(2 * len(events))
                continue
            add_count(2 * len(events) + 1)
            assert plan is not None
            in_flight.append((plan, encoded))
            index, plan, encoded = next(plans, _NO_PLAN)

    def _pack_result(self, result: StepResult, now_ns: int, batch: _Batch) -> int:
        """Put it where it belongs; its kind."""
        plan = take_plan(self.in_flight, result)
        if plan is None or result.outcome is not _DONE or (result.runs, result.positions) != expected_rows(plan):
            batch.events.append(result)
            return _WHOLE
        if _has_only_tokens(result):
            batch.plain.append((now_ns, result))
            return _PLAIN
        batch.events.append(msgspec.structs.replace(result, runs=b"", positions=b""))
        return _STRIPPED


def _is_usual(result: StepResult, plan: StepPlan) -> bool:
    """A plain result of this plan, of which each row samples and none has drafts. Its positions were not compared."""
    return (
        result.runs == plan.runs
        and result.step == plan.step
        and result.epoch == plan.epoch
        and result.outcome is _DONE
        and not plan.num_drafts
        and b"\0" not in plan.samples
        and _has_only_tokens(result)
    )


def _has_only_tokens(result: StepResult) -> bool:
    return not (
        result.num_sampled
        or result.logprob_rows
        or result.prompt_logprobs
        or result.logprobs
        or result.top_ids
        or result.top_logprobs
        or result.error
    )


_NO_PLAN: tuple[int, StepPlan | None, bytes] = (-1, None, b"")


class _Batch:
    """The columns of `Calls` while they grow."""

    __slots__ = ("counts", "events", "kinds", "plain", "usual", "usual_plans")

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.kinds = bytearray()
        self.events: list[Event] = []
        self.plain: list[tuple[int, StepResult]] = []
        """With the time of the call that got it."""
        self.usual: list[StepResult] = []
        """Plain ones whose positions are still to be compared, all at once."""
        self.usual_plans: list[StepPlan] = []
        """Theirs."""


def take_plan(in_flight: deque[tuple[StepPlan, bytes]], result: StepResult) -> StepPlan | None:
    """The plan that this is the result of, which is in flight no more; None if it is not the oldest one's."""
    if not in_flight:
        return None
    plan = in_flight[0][0]
    if result.step != plan.step or result.epoch != plan.epoch:
        return None
    in_flight.popleft()
    return plan
