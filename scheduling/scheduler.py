"""The scheduler: events in, one step plan out. A plain object on plain values.

It reads no clock, random source, environment or device: the same calls give the same plans, byte for byte. How a
request moves:

    Admit ──▶ waiting ──admission──▶ running ──EOS, stop ids, length, repetition, Stop, Abort, deadline──▶ finished
       │       ▲  ▲ ▲                 │ │ │                                                             (forgotten)
       │       │  │ └─preemption,─────┘ │ │
       │       │  │   failed step,      │ │   A waiting request is held back while its grammar is compiled, or while
       │       │  │   worker's death    │ │   its keys and values are loaded (`waiting_for_grammar`, `loading`).
       │       │  └─more input─ paused ◀┘ │
       │       │                (session) │
       └──▶ refused (429), ignored, timed out, or complete already (a resumed one): at once

A step, in order: events are applied (`intake`, `update`, `failures`, ...), what is late ends (`expiry`), victims go and
rows get their tokens (`running`, `preemption`), others are admitted (`admission`), the plan is built (`plan_builder`).
What all parts share is `state`, what changes at every token `row_arrays`; who comes first and who goes is `policy`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import assert_never

from msgspec import structs

from ..mailbox.messages.admission import AddInput, Admit, Stop
from ..mailbox.messages.drafts import Drafts
from ..mailbox.messages.grammar import Advance, GrammarFailed, GrammarReady, MatcherFailed
from ..mailbox.messages.requests import Abort, RequestLedger
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..mailbox.messages.transfers import BlocksLoaded
from . import expiry, failures, intake, orphans
from .admission import admit_waiting, release_idle
from .deltas import Outgoing
from .drafting import take_drafts
from .estimate import decayed
from .events import Event, GrammarGone, TokenizerGone, WorkerAttached, WorkerGone
from .integrity import check_integrity
from .leak_ledger import Leak
from .limits import SchedulerLimits
from .loading import blocks_loaded, lose_one_loaded
from .plan_builder import PlanBuilder
from .row_arrays import Int32s
from .running import schedule_running
from .sessions import add_input
from .snapshot import restore_state, save_state
from .state import SchedulerState
from .statistics import SchedulerStatistics, statistics_of
from .steady import SteadyRows, find_steady, take_steady_steps
from .update import apply_result
from .wait_clock import WaitCause
from .waiting_for_grammar import decide_grammar, fail_matcher, lose_grammars


class Scheduler:
    """Requests, block tables, prefix cache: the truth of every live request of one replica."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self._state = SchedulerState(limits)
        self._epoch: int | None = None
        """Of the worker that is attached; None while there is none."""
        self._next_step = 0

    @property
    def now_ns(self) -> int:
        """Of the last `step`."""
        return self._state.now_ns

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
        state.ledgers.advance(now_ns)
        state.drain_rate.advance(now_ns, state.is_queue)
        for event in events:
            self._apply(event)
        expiry.sweep(state)
        return self._plan(now_ns)

    def find_steady(self) -> SteadyRows | None:
        """The rows that run, if nothing happens in the next steps but that each of them decodes; None: `step` has to be
        asked, as it always can be."""
        return None if self._epoch is None else find_steady(self._state)

    def take_steady_steps(
        self, steady: SteadyRows, times_ns: Sequence[int], token_ids: Int32s, *, has_successor: bool
    ) -> list[int]:
        """As if `step` had been called at each of the k times, at most `steady.max_steps` of them, with the result of
        the oldest step in flight: the state is the same, only the plans were not made.

        `steady`: what `find_steady` told after the last call of `step`. `token_ids`: [k, n], parallel to its rows;
        `has_successor`: another plan waited for the worker when each of the k steps ended. Returns at which of the k
        steps each block was taken.
        """
        self._next_step += len(times_ns)
        return take_steady_steps(self._state, steady, times_ns, token_ids, has_successor)

    def next_deadline_ns(self) -> int | None:
        """When `step` is to be called even if nothing happens, in the time of its `now_ns`; None: never."""
        return expiry.next_deadline_ns(self._state)

    def collect(self, blocked: Container[str] = ()) -> Outgoing:
        """What the tokenizers have not been sent; call it after the plan is published, so that no plan waits for it,
        and again if there is more.

        The tokens for tokenizers in `blocked` stay here, and later ones merge into them.
        """
        self._state.register_noted_blocks()
        outgoing = self._state.outbox.collect(self._state.find, blocked)
        loads = self._state.transfers.drain_unsent(self._state.steps.num_ended)
        return structs.replace(outgoing, loads=loads) if loads else outgoing

    def advance_grammars(self) -> Advance | None:
        """What the grammar actor has not been told of the constrained rows; None: nothing. No plan depends on it."""
        return None if self._epoch is None else self._state.constrained.take_news(self._epoch)

    def statistics(self) -> SchedulerStatistics:
        """Gauges and counters now."""
        return statistics_of(self._state)

    def explain(self, request_id: str, now_ns: int | None = None) -> tuple[RequestLedger, ...]:
        """Where the time of a request's choices went, of each that lives or has ended lately; changes nothing.

        Up to `now_ns`, not before the last step; None: up to the last step.
        """
        state = self._state
        return state.ledgers.explain(request_id, state.choices(request_id), state.now_ns if now_ns is None else now_ns)

    def check_integrity(self) -> list[Leak]:
        """Assert the invariants of all state; O(blocks + requests), so only when idle.

        Returns what had leaked, blocks and rows: it is given back and counted.
        """
        return check_integrity(self._state)

    def snapshot(self) -> bytes:
        """The whole state, between two calls of `step`; changes nothing. O(blocks + tokens of live requests)."""
        self._state.register_noted_blocks()
        return save_state(self._state, self._epoch, self._next_step)

    @staticmethod
    def restore(limits: SchedulerLimits, data: bytes) -> Scheduler:
        """A scheduler that goes on where the one with this snapshot stood: same events, same plans, same deltas.

        Raises ConfigError if the snapshot is of another version, is damaged, or was taken with other limits.
        """
        scheduler = Scheduler(limits)
        scheduler._epoch, scheduler._next_step = restore_state(data, scheduler._state)
        return scheduler

    def _apply(self, event: Event) -> None:
        match event:
            case StepResult():
                if event.epoch == self._epoch:
                    self._take_result(event)
            case Admit():
                intake.take_in(self._state, event)
            case AddInput():
                add_input(self._state, event)
            case Stop():
                intake.stop(self._state, event)
            case Abort():
                intake.abort(self._state, event)
            case GrammarReady():
                decide_grammar(self._state, event.grammar_key, None)
            case GrammarFailed():
                decide_grammar(self._state, event.grammar_key, event)
            case MatcherFailed():
                if event.epoch == self._epoch:
                    fail_matcher(self._state, event)
            case Drafts():
                take_drafts(self._state, event)
            case BlocksLoaded():
                blocks_loaded(self._state, event)
            case WorkerGone():
                failures.lose_worker(self._state)
                self._epoch = None
            case WorkerAttached():
                failures.lose_worker(self._state)
                self._epoch = event.epoch
            case TokenizerGone():
                orphans.lose_tokenizer(self._state, event.tokenizer)
            case GrammarGone():
                lose_grammars(self._state)
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
        state = self._state
        if self._epoch is None or state.is_fresh_due:
            state.ledgers.stop(WaitCause.WORKER)
        if self._epoch is None or not self.can_plan:
            return None
        builder = PlanBuilder(self.limits, state.rows)
        cause: WaitCause | None = WaitCause.BLOCKS
        if not schedule_running(state, builder):
            cause = admit_waiting(state, builder)
            while cause is WaitCause.BLOCKS and not state.running and lose_one_loaded(state):
                cause = admit_waiting(state, builder)
        if builder.is_empty and state.trial.is_active and release_idle(state):
            admit_waiting(state, builder)
        state.ledgers.stop(WaitCause.WORKER if state.trial.is_active else cause or WaitCause.BUDGET)
        if builder.is_empty:
            return None  # rows freed since the last plan are named in the next one
        plan, planned = builder.build(
            self._epoch, self._next_step, now_ns, state.rows.drain_removed(), is_fresh=state.is_fresh_due
        )
        state.is_fresh_due = False
        state.steps.plan(planned)
        state.counters.num_scheduled_tokens += builder.num_tokens
        state.estimate = decayed(state.estimate)
        self._next_step += 1
        return plan
