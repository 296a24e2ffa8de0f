"""The scheduler: events in, one step plan out. A plain object on plain values.

It reads no clock, random source, environment or device: the same calls give the same plans, byte for byte. How a
request moves:

    Admit ──▶ waiting ──admission──▶ running ──EOS, length, Stop, Abort──▶ finished (forgotten)
       │         ▲                      │
       │         └──────preemption──────┘
       └──▶ refused (429) or ignored, at once

The parts: `intake` (requests come and are ended), `update` (tokens come), `batching` (who computes what in the next
step), `plan_builder` (the plan as arrays), `deltas` (what goes to the tokenizers), `state` (what all of them share).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import assert_never

from ..mailbox.messages.admission import Admit, Stop
from ..mailbox.messages.requests import Abort
from ..mailbox.messages.steps import StepPlan, StepResult
from . import intake
from .batching import admit_waiting, schedule_running
from .deltas import Outgoing
from .events import Event, WorkerAttached, WorkerGone
from .limits import SchedulerLimits
from .plan_builder import PlanBuilder
from .request import RequestState
from .state import SchedulerState
from .statistics import SchedulerStatistics
from .update import apply_result


class Scheduler:
    """Requests, block tables, prefix cache: the truth of every live request of one replica."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self._state = SchedulerState(limits)
        self._epoch: int | None = None
        """Of the worker that is attached; None while there is none."""
        self._next_step = 0

    @property
    def num_in_flight(self) -> int:
        """Steps planned whose result is not in."""
        return self._state.steps.num_in_flight

    @property
    def can_plan(self) -> bool:
        """A worker is attached, the pipeline has room, some request is live; `step` may still find nothing to run."""
        state = self._state
        has_room = self.num_in_flight < self.limits.pipeline_depth
        return self._epoch is not None and has_room and bool(state.running or state.waiting)

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        """Apply `events` in order, then plan at most one step; None if nothing can run now.

        Call it again without events until it returns None. `now_ns` only stamps the plan. Raises ProtocolViolation if
        a result does not belong to the oldest step in flight or leaves a gap.
        """
        for event in events:
            self._apply(event)
        return self._plan(now_ns)

    def collect(self, blocked: Container[str] = ()) -> Outgoing:
        """What the tokenizers have not been sent; call it after the plan is published, so that no plan waits for it.

        The tokens for tokenizers in `blocked` stay here, and later ones merge into them.
        """
        return self._state.outbox.collect(blocked)

    def statistics(self) -> SchedulerStatistics:
        """Gauges and counters now."""
        state = self._state
        counters = state.counters
        return SchedulerStatistics(
            num_running=len(state.running),
            num_waiting=len(state.waiting),
            num_waiting_tokens=state.num_waiting_tokens,
            num_blocks=self.limits.num_blocks,
            num_free_blocks=state.pool.num_free,
            num_preemptions=counters.num_preemptions,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_cache_queries=counters.prefix_cache_queries,
            prefix_cache_hits=counters.prefix_cache_hits,
            num_finished=counters.num_finished,
            num_steps=state.steps.num_planned,
            num_steady_steps=state.steps.num_steady,
            num_overlapped_steps=state.steps.num_overlapped,
            num_leaks=counters.num_leaks,
            num_queued_room=max(0, self.limits.max_queued_requests + state.rows.num_free - len(state.waiting)),
        )

    def check_integrity(self) -> list[int]:
        """Assert the invariants that tie requests, rows and blocks together; O(blocks + requests), so only when idle.

        Returns the blocks that had leaked: they are given back and counted.
        """
        state = self._state
        for run, request in state.running.items():
            assert request.run == run and request.state is RequestState.RUNNING, f"{request.key} is not running"
            num_places = len(request.block_ids) * self.limits.block_size
            assert request.num_computed_tokens <= num_places, f"{request.key} computes tokens without a block"
            assert request.num_uncomputed_tokens >= 0, f"{request.key} has computed tokens that nobody knows"
        for key, request in state.waiting.items():
            assert state.find(*key) is request and request.run is None, f"{key} waits and runs"
            assert not request.block_ids and not request.num_in_flight, f"{key} waits but holds blocks"
        assert state.num_waiting_tokens == sum(request.num_prompt_tokens for request in state.waiting.values())
        state.rows.check_integrity([request.row for request in state.running.values() if request.row is not None])
        leaked = state.pool.check_integrity(request.block_ids for request in state.requests())
        state.counters.num_leaks += len(leaked)
        return leaked

    def _apply(self, event: Event) -> None:
        match event:
            case StepResult():
                if event.epoch == self._epoch:
                    apply_result(self._state, event)
            case Admit():
                intake.take_in(self._state, event)
            case Stop():
                intake.stop(self._state, event)
            case Abort():
                intake.abort(self._state, event)
            case WorkerGone():
                self._lose_worker()
            case WorkerAttached():
                self._lose_worker()
                self._epoch = event.epoch
            case _:
                assert_never(event)

    def _lose_worker(self) -> None:
        """All K/V are gone: what ran goes back to the head of waiting in its order, and no block can be hit."""
        state = self._state
        for request in reversed(list(state.running.values())):
            state.preempt(request)
        state.pool.forget_keys()
        state.rows.forget_removed()
        state.steps.forget()
        self._epoch = None

    def _plan(self, now_ns: int) -> StepPlan | None:
        if self._epoch is None or not self.can_plan:
            return None
        state = self._state
        builder = PlanBuilder(self.limits)
        has_preempted = schedule_running(state, builder)
        if not has_preempted:
            admit_waiting(state, builder)
        if builder.is_empty:
            return None  # rows freed since the last plan are named in the next one
        plan = builder.build(self._epoch, self._next_step, now_ns, state.rows.drain_removed())
        state.steps.plan(plan.step, plan.runs)
        self._next_step += 1
        return plan
