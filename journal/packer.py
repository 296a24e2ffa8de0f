"""Calls of the scheduler into columns. This is what a journal costs: all work is on batches of calls.

In nearly all steps nothing but tokens comes, just where the plan asked for them. So a batch is turned into columns at
once and these are compared as wholes; only what stands out is looked at one by one.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import chain
from operator import lt

from msgspec.structs import replace

from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.events import Event, WorkerAttached, WorkerGone
from .plan_chain import PlanChain
from .plan_rows import all_as_expected, expected_rows
from .records import Calls, EventKind

_DONE = StepOutcome.DONE
_WHOLE, _PLAIN, _STRIPPED = int(EventKind.WHOLE), int(EventKind.PLAIN), int(EventKind.STRIPPED)


class Taken:
    """Calls of `Scheduler.step` that are not packed yet, n of them, which made p plans."""

    __slots__ = ("encoded", "events", "now_ns", "places", "plans")

    def __init__(self) -> None:
        self.now_ns: list[int] = []
        """[n]"""
        self.events: list[Sequence[Event]] = []
        """[n]"""
        self.places: list[int] = []
        """[p]: which call made the plan"""
        self.plans: list[StepPlan] = []
        """[p]"""
        self.encoded: list[bytes] = []
        """[p]: their bytes"""


class Packer:
    """Packs calls, batch after batch; it follows which plans are in flight."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        """Of the last call that was packed."""
        self.chain = PlanChain()
        self.in_flight: deque[tuple[StepPlan, bytes]] = deque()

    def pack(self, taken: Taken) -> Calls:
        """The record of these calls, which follow those packed before, and of the plans that they made."""
        if taken.now_ns:
            self.now_ns = taken.now_ns[-1]
        events = list(chain.from_iterable(taken.events))
        results = [event for event in events if type(event) is StepResult]
        kinds = self._kinds_by_column(taken, events, results)
        if kinds is None:
            kinds = self._kinds_one_by_one(taken)
        plain, others = results, list[Event]()
        if len(results) < len(events) or kinds.count(_PLAIN) < len(kinds):
            kinds, plain, others = _sorted(events, kinds)
        return Calls(
            now_ns=_int64s(taken.now_ns),
            num_events=list(map(len, taken.events)),
            kinds=bytes(kinds),
            events=others,
            start_ns=_int64s([result.start_ns for result in plain]),
            end_ns=_int64s([result.end_ns for result in plain]),
            num_plans_waiting=[result.num_plans_waiting for result in plain],
            token_ids=[result.token_ids for result in plain],
            plan_calls=taken.places,
            crcs=self.chain.extend(taken.plans, taken.encoded),
            num_rows=[len(plan.samples) for plan in taken.plans],
            num_new_rows=[len(plan.new_rows) for plan in taken.plans],
            digest=self.chain.digest(),
        )

    def _kinds_by_column(
        self, taken: Taken, events: Sequence[Event], results: Sequence[StepResult]
    ) -> bytearray | None:
        """Of each result its kind, if each is that of the next plan in flight, and nearly all just what these asked
        for. None, with nothing changed, if it is not so.
        """
        num_before, num_results = len(self.in_flight), len(results)
        plans = [plan for plan, _ in self.in_flight] + taken.plans
        answered = plans[:num_results]
        if (
            len(answered) < num_results
            or [result.step for result in results] != [plan.step for plan in answered]
            or [result.epoch for result in results] != [plan.epoch for plan in answered]
            or not all(map(lt, taken.places, _places_of_results(taken)[num_before:]))
            or (num_results < len(events) and any(isinstance(event, WorkerGone | WorkerAttached) for event in events))
        ):
            return None
        following = [*plans[1 : num_results + 1], *answered[-1:]][:num_results]
        kinds = bytearray([_PLAIN]) * num_results
        for index in _unusual(results, answered):
            kinds[index] = _kind_of(results[index], answered[index])
        if kinds.count(_PLAIN) < num_results:
            plain = [index for index, kind in enumerate(kinds) if kind == _PLAIN]
            results, answered = [results[index] for index in plain], [answered[index] for index in plain]
            following = [following[index] for index in plain]
        if not all_as_expected(answered, results, following):
            return None
        encoded = [data for _, data in self.in_flight] + taken.encoded
        self.in_flight = deque(zip(plans[num_results:], encoded[num_results:], strict=True))
        return kinds

    def _kinds_one_by_one(self, taken: Taken) -> bytearray:
        """Of each result its kind, whatever happened."""
        kinds = bytearray()
        made = dict(zip(taken.places, zip(taken.plans, taken.encoded, strict=True), strict=True))
        for place, events in enumerate(taken.events):
            for event in events:
                if isinstance(event, StepResult):
                    plan = take_plan(self.in_flight, event)
                    kinds.append(_WHOLE if plan is None else _kind_of(event, plan))
                elif isinstance(event, WorkerGone | WorkerAttached):
                    self.in_flight.clear()
            if place in made:
                self.in_flight.append(made[place])
        return kinds


def _int64s(values: list[int]) -> bytes:
    return array("q", values).tobytes()


def _places_of_results(taken: Taken) -> Sequence[int]:
    """Of each result, which call got it."""
    return [place for place, events in enumerate(taken.events) for event in events if type(event) is StepResult]


def _unusual(results: Sequence[StepResult], plans: Sequence[StepPlan]) -> list[int]:
    """Indexes of the results that have more than tokens, or whose plan has drafts or rows that do not sample, or other
    runs. The positions are not compared."""
    has_skips = b"\0" in b"".join([plan.samples for plan in plans])
    return [
        index
        for index, (result, plan) in enumerate(zip(results, plans, strict=True))
        if result.runs != plan.runs
        or plan.num_drafts
        or plan.max_drafts
        or (has_skips and b"\0" in plan.samples)
        or result.outcome is not _DONE
        or result.num_sampled
        or result.logprob_rows
        or result.prompt_logprobs
        or result.logprobs
        or result.top_ids
        or result.top_logprobs
        or result.error
    ]


def _kind_of(result: StepResult, plan: StepPlan) -> int:
    """How the result of this plan is kept."""
    if result.outcome is not _DONE or (result.runs, result.positions) != expected_rows(plan):
        return _WHOLE
    has_more = (
        result.num_sampled
        or result.num_drafted
        or result.logprob_rows
        or result.prompt_logprobs
        or result.logprobs
        or result.top_ids
        or result.top_logprobs
        or result.error
    )
    return _STRIPPED if has_more else _PLAIN


def _sorted(events: Sequence[Event], result_kinds: bytearray) -> tuple[bytearray, list[StepResult], list[Event]]:
    """Kinds of all events; the results that are plain; what stands in `Calls.events`."""
    kinds = bytearray(len(events))
    plain: list[StepResult] = []
    others: list[Event] = []
    next_kind = iter(result_kinds).__next__
    for index, event in enumerate(events):
        if type(event) is not StepResult:
            others.append(event)
            continue
        kinds[index] = kind = next_kind()
        if kind == _PLAIN:
            plain.append(event)
        else:
            others.append(event if kind == _WHOLE else replace(event, runs=b"", positions=b""))
    return kinds, plain, others


def take_plan(in_flight: deque[tuple[StepPlan, bytes]], result: StepResult) -> StepPlan | None:
    """The plan that this is the result of, which is in flight no more; None if it is not the oldest one's."""
    if not in_flight:
        return None
    plan = in_flight[0][0]
    if result.step != plan.step or result.epoch != plan.epoch:
        return None
    in_flight.popleft()
    return plan
