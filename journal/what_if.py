"""The requests of a recorded run before a scheduler with other limits and a modelled worker.

The worker takes one plan after another, as long as `StepModel` says; requests get the tokens that they had, so their
lengths stay. Where one gets further than it did (it had been refused, aborted, or not ended) it goes on with tokens
that end nothing, up to its own limits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from ..mailbox.messages.admission import Stop
from ..mailbox.messages.steps import StepPlan, StepResult
from ..scheduling.events import Event
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler
from .arrivals import TimedEvent
from .outcomes import Key, Outcomes
from .plan_rows import expected_rows
from .step_model import StepModel

_FILLER = 1 << 30
"""Token ids from here on are no vocabulary's: they end nothing, and no two positions have the same."""


class ModelledWorker:
    """Runs plans in their order; yields the tokens that each request had in the recorded run."""

    def __init__(self, model: StepModel, tokens: Mapping[Key, Sequence[int]]) -> None:
        self._model, self._tokens = model, tokens
        self._rows: dict[int, tuple[Key, int]] = {}
        """Run -> (request, number of its prompt's tokens)"""
        self._end_ns = 0.0

    def run(self, plan: StepPlan) -> StepResult:
        """The result, with the times at which the step begins and ends."""
        for new in plan.new_rows:
            self._rows[new.run] = ((new.request_id, new.choice), new.num_prompt_tokens)
        waits_for_plan_ns = plan.now_ns + self._model.pickup_ns
        start_ns = max(waits_for_plan_ns, self._end_ns + self._model.gap_ns)
        self._end_ns = start_ns + self._model.run_ns(plan)
        runs, positions = expected_rows(plan)
        run_list, position_list = np.frombuffer(runs, "<i8").tolist(), np.frombuffer(positions, "<i4").tolist()
        token_ids = [self._token(run, position) for run, position in zip(run_list, position_list, strict=True)]
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=runs,
            positions=positions,
            token_ids=np.array(token_ids, "<i4").tobytes(),
            start_ns=round(start_ns),
            end_ns=round(self._end_ns),
        )

    def _token(self, run: int, position: int) -> int:
        key, num_prompt_tokens = self._rows[run]
        tokens, index = self._tokens.get(key, ()), position - num_prompt_tokens
        return tokens[index] if index < len(tokens) else _FILLER + position


class WhatIf(msgspec.Struct):
    """How it went."""

    scheduler: Scheduler
    outcomes: Outcomes
    num_steps: int
    begin_ns: int
    end_ns: int


class _Run:
    """The loop: the next thing that happens is the first of arrivals, results and the scheduler's own deadline."""

    def __init__(
        self,
        scheduler: Scheduler,
        timed: Sequence[TimedEvent],
        stops: Mapping[Key, Stop],
        worker: ModelledWorker,
        report_ns: float,
    ) -> None:
        self.scheduler, self.outcomes = scheduler, Outcomes()
        self.num_steps = 0
        self._worker, self._report_ns = worker, report_ns
        self._timed = [(now_ns, place, event) for place, (now_ns, event) in enumerate(timed)]
        heapq.heapify(self._timed)
        self._place = len(self._timed)
        self._stops = dict(stops)
        self._results: deque[tuple[int, StepResult]] = deque()
        """(when the scheduler hears of it, result), oldest first."""

    def run(self, begin_ns: int) -> int:
        """Until nothing can happen any more; returns the time then."""
        now_ns = begin_ns
        while (next_ns := self._next_ns()) is not None:
            now_ns = max(now_ns, next_ns)
            events: list[Event] = []
            while self._timed and self._timed[0][0] <= now_ns:
                events.append(heapq.heappop(self._timed)[2])
            while self._results and self._results[0][0] <= now_ns:
                events.append(self._results.popleft()[1])
            self.outcomes.events(now_ns, events)
            plan = self.scheduler.step(now_ns, events)
            while plan is not None:
                self.num_steps += 1
                result = self._worker.run(plan)
                self._results.append((round(result.end_ns + self._report_ns), result))
                plan = self.scheduler.step(now_ns, ())
            self._collect(now_ns)
        return now_ns

    def _next_ns(self) -> int | None:
        times = [self._timed[0][0]] if self._timed else []
        times += [self._results[0][0]] if self._results else []
        deadline_ns = self.scheduler.next_deadline_ns()
        times += [deadline_ns] if deadline_ns is not None else []
        return min(times, default=None)

    def _collect(self, now_ns: int) -> None:
        has_more = True
        while has_more:
            outgoing = self.scheduler.collect()
            has_more = outgoing.has_more
            self.outcomes.sent(now_ns, outgoing)
            for deltas in outgoing.deltas.values():
                for key in zip(deltas.request_ids, deltas.choices, strict=True):
                    self._stop_string(now_ns, key)

    def _stop_string(self, now_ns: int, key: Key) -> None:
        """The tokenizer has the token with which the stop string is whole: it tells at once."""
        stop = self._stops.get(key)
        if stop is not None and len(self.outcomes.of[key].token_ids) > stop.position:
            del self._stops[key]
            heapq.heappush(self._timed, (now_ns, self._place, msgspec.structs.replace(stop, attempt=1)))
            self._place += 1


def what_if(
    limits: SchedulerLimits,
    timed: Sequence[TimedEvent],
    stops: Mapping[Key, Stop],
    recorded: Outcomes,
    model: StepModel,
    make_scheduler: Callable[[SchedulerLimits], Scheduler] = Scheduler,
) -> WhatIf:
    """Run them all. `recorded`: whose tokens they get."""
    begin_ns = timed[0][0] if timed else 0
    tokens = {key: outcome.token_ids for key, outcome in recorded.of.items()}
    run = _Run(make_scheduler(limits), timed, stops, ModelledWorker(model, tokens), model.report_ns)
    end_ns = run.run(begin_ns)
    return WhatIf(run.scheduler, run.outcomes, run.num_steps, begin_ns, end_ns)
