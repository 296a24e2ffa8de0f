"""The scheduler: events in, one step plan out. A plain object on plain values.

It reads no clock, random source, environment or device: the same calls give the same plans, byte for byte. How a
request moves:

    Admit ──▶ waiting ──admission──▶ running ──EOS, stop ids, length, repetition, Stop, Abort──▶ finished (forgotten)
       │         ▲                      │
       │         ├──────preemption──────┤
       │         └─failed step, worker──┘
       │                death
       └──▶ refused (429), ignored, or complete already (a resumed one): at once

The parts: `intake` (requests come and are ended), `update` (tokens come), `gather` (log-probabilities of prompts come),
`stop` (a token ends a request), `batching` (who computes what in the next step), `policy` (whose turn it is, who has to
go), `plan_builder` (the plan as arrays), `deltas` (what goes to the tokenizers), `state` (what all of them share),
`failures` and `trial` (failed steps, dead workers, and who is to blame), `orphans` (dead tokenizers).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import assert_never

from ..mailbox.messages.admission import Admit, Stop
from ..mailbox.messages.requests import Abort
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from . import failures, intake, orphans
from .batching import admit_waiting, release_idle, schedule_running
from .deltas import Outgoing
from .events import Event, TokenizerGone, WorkerAttached, WorkerGone
from .integrity import check_integrity
from .limits import SchedulerLimits
from .plan_builder import PlanBuilder
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
        """A worker is attached, the pipeline has room, some request is live; `step` may still find nothing to run.

        The pipeline's depth is 1 during a trial; after a failed step it has room when all in flight are in.
        """
        state = self._state
        has_room = self.num_in_flight < state.max_in_flight
        return self._epoch is not None and has_room and bool(state.running or state.waiting)

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        """Apply `events` in order, then plan at most one step; None if nothing can run now.

        Call it again without events until it returns None. `now_ns` never falls; it stamps the plan, ends orphans, and
        measures how fast the queue drains. Raises ProtocolViolation if a result does not belong to the oldest step in
        flight, leaves a gap, or has an outcome that it cannot have.
        """
        state = self._state
        state.now_ns = now_ns
        state.drain_rate.advance(now_ns, state.is_queue)
        for event in events:
            self._apply(event)
        orphans.sweep(state)
        return self._plan(now_ns)

    def next_deadline_ns(self) -> int | None:
        """When `step` is to be called even if nothing happens, in the time of its `now_ns`; None: never."""
        return orphans.next_deadline_ns(self._state)

    def collect(self, blocked: Container[str] = ()) -> Outgoing:
        """What the tokenizers have not been sent; call it after the plan is published, so that no plan waits for it,
        and again if there is more.

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
            num_failed_steps=counters.num_failed_steps,
            num_resumed=counters.num_resumed,
            num_orphans_ended=counters.num_orphans_ended,
            num_poisoned=counters.num_poisoned,
            retry_after_s=state.retry_after_s(1),
            num_queued_room=max(0, state.num_queued_room) if state.takes_tokens(1) else 0,
            num_admitted=counters.num_admitted,
            queue_time_ns=counters.queue_time_ns,
            num_prefilled=counters.num_prefilled,
            prefill_time_ns=counters.prefill_time_ns,
            num_scheduled_tokens=counters.num_scheduled_tokens,
        )

    def check_integrity(self) -> list[int]:
        """Assert the invariants of all state; O(blocks + requests), so only when idle.

        Returns the blocks that had leaked: they are given back and counted.
        """
        return check_integrity(self._state)

    def _apply(self, event: Event) -> None:
        match event:
            case StepResult():
                if event.epoch == self._epoch:
                    self._take_result(event)
            case Admit():
                intake.take_in(self._state, event)
            case Stop():
                intake.stop(self._state, event)
            case Abort():
                intake.abort(self._state, event)
            case WorkerGone():
                failures.lose_worker(self._state)
                self._epoch = None
            case WorkerAttached():
                failures.lose_worker(self._state)
                self._epoch = event.epoch
            case TokenizerGone():
                orphans.lose_tokenizer(self._state, event.tokenizer)
            case _:
                assert_never(event)

    def _take_result(self, result: StepResult) -> None:
        failures.check_outcome(self._state, result)
        match result.outcome:
            case StepOutcome.DONE:
                apply_result(self._state, result)
            case StepOutcome.FAILED:
                failures.fail_step(self._state, result)
            case StepOutcome.VOID:
                failures.void_step(self._state, result)
            case _:
                assert_never(result.outcome)

    def _plan(self, now_ns: int) -> StepPlan | None:
        if self._epoch is None or not self.can_plan:
            return None
        state = self._state
        builder = PlanBuilder(self.limits)
        has_preempted = schedule_running(state, builder)
        if not has_preempted:
            admit_waiting(state, builder)
        if builder.is_empty and state.trial.is_active and release_idle(state):
            admit_waiting(state, builder)
        if builder.is_empty:
            return None  # rows freed since the last plan are named in the next one
        plan = builder.build(
            self._epoch, self._next_step, now_ns, state.rows.drain_removed(), is_fresh=state.is_fresh_due
        )
        state.is_fresh_due = False
        state.steps.plan(plan.step, plan.runs, builder.requests)
        state.counters.num_scheduled_tokens += self.limits.max_num_batched_tokens - builder.budget
        self._next_step += 1
        return plan
