"""Steps taken at once beside as many single ones, in random lives of a scheduler."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.scheduling.steady import SteadyRows
from callboard.tests.scheduling.choices import Choices, SeededChoices, between, one_of
from callboard.tests.scheduling.deep_compare import differences
from callboard.tests.scheduling.fake_rows import ints
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.restored_beside import parts
from callboard.tests.scheduling.twin_transitions import TRANSITIONS, choose_limits, go_on
from callboard.tests.scheduling.twin_world import World

Int32s = npt.NDArray[np.int32]
TOKENS = (6, 8)
"""So few that the same blocks are written again and again; nobody ends at them."""


class Stretch:
    """Some steady steps: when each result comes, and its tokens."""

    def __init__(self, steady: SteadyRows, choices: Choices, now_ns: int) -> None:
        self.steady = steady
        self.num_steps = between(choices, 1, min(steady.max_steps, one_of(choices, [3, 40])))
        waits = [one_of(choices, [1, 0, 7, 10**9]) for _ in range(self.num_steps)]
        self.times_ns = [now_ns + sum(waits[: step + 1]) for step in range(self.num_steps)]
        columns = [[one_of(choices, TOKENS) for _ in range(self.num_steps)] for _ in steady.rows]
        self.token_ids: Int32s = np.array(columns, np.int32).T.copy()
        self.has_successor = choices.below(2) == 0

    def take_at_once(self, scheduler: Scheduler) -> None:
        num_free = scheduler.statistics().num_free_blocks
        found = scheduler.find_steady()
        assert found is not None and found.max_steps == self.steady.max_steps
        taken = scheduler.take_steady_steps(found, self.times_ns, self.token_ids, has_successor=self.has_successor)
        assert taken == sorted(taken) and len(taken) == num_free - scheduler.statistics().num_free_blocks

    def take_singly(self, scheduler: Scheduler) -> list[StepPlan]:
        """Each plan must be what it is without anybody looking: the same rows, one token each."""
        steady, plans = self.steady, []
        for nth, (now_ns, tokens) in enumerate(zip(self.times_ns, self.token_ids, strict=True)):
            steps = scheduler._state.steps
            oldest, positions = steps._steps[-steps.num_in_flight].step, steady.num_tokens + np.int32(nth)
            assert scheduler._epoch is not None
            result = StepResult(
                scheduler._epoch,
                oldest,
                steady.runs,
                positions.tobytes(),
                tokens.tobytes(),
                now_ns,
                now_ns,
                num_plans_waiting=int(self.has_successor),
            )
            plan = scheduler.step(now_ns, [result])
            assert plan is not None and not scheduler.can_plan
            assert (plan.runs, plan.new_rows, plan.removed_rows) == (steady.runs, [], b"")
            assert ints(plan.starts) == (steady.starts + nth).tolist()
            assert set(ints(plan.num_tokens)) == {1} and all(plan.samples) and not plan.num_drafts
            plans.append(plan)
        return plans


class SteadyWorld:
    """Two schedulers with the same events, but that one of them takes steady steps at once; the state is compared
    whenever it has."""

    def __init__(self, choices: Choices, seen: Counter[str]) -> None:
        self.choices, self.seen = choices, seen
        self.limits = _choose_limits(choices)
        self.at_once, self.singly = Scheduler(self.limits), Scheduler(self.limits)
        self.now_ns = self.num_named = 0
        self.plans: deque[StepPlan] = deque()
        self.call(WorkerAttached(1))

    def call(self, *events: Event) -> None:
        plan = self._step(events)
        while plan is not None:
            self.plans.append(plan)
            plan = self._step(())

    def _step(self, events: Sequence[Event]) -> StepPlan | None:
        self.now_ns += one_of(self.choices, [1, 0, 1000, 10**8])
        plan, other = (scheduler.step(self.now_ns, events) for scheduler in (self.singly, self.at_once))
        assert msgspec.msgpack.encode(plan) == msgspec.msgpack.encode(other)
        return plan

    def act(self) -> None:
        act = one_of(self.choices, [self.take_stretch] * 4 + [self.deliver] * 5 + [self.admit] * 2)
        one_of(self.choices, [act] * 12 + [self.abort, self.collect])()

    def admit(self) -> None:
        self.num_named += 1
        choices = self.choices
        prompt = [one_of(choices, TOKENS) for _ in range(between(choices, 1, one_of(choices, [4, 40])))]
        changes = {} if choices.below(20) else {"min_tokens": 9}
        self.call(
            make_admit(
                f"r{self.num_named}",
                prompt,
                **{
                    "ignore_eos": bool(choices.below(3)),
                    "max_tokens": between(choices, 1, one_of(choices, [6, 80])),
                    **changes,
                },
                priority=between(choices, 0, 2),
                tenant=one_of(choices, ["a", "b"]),
                deadline_ns=self.now_ns + 10**6 if choices.below(30) == 29 else None,
            )
        )

    def deliver(self) -> None:
        if self.plans:
            plan = self.plans.popleft()
            samples = np.frombuffer(plan.samples, np.bool_)
            ends = np.frombuffer(plan.starts, np.int32) + np.frombuffer(plan.num_tokens, np.int32)
            runs = np.frombuffer(plan.runs, np.int64)[samples]
            tokens = np.array([one_of(self.choices, TOKENS) for _ in runs], np.int32)
            positions = ends[samples].tobytes()
            waiting = len(self.plans)
            self.call(
                StepResult(1, plan.step, runs.tobytes(), positions, tokens.tobytes(), 0, 1, num_plans_waiting=waiting)
            )

    def take_stretch(self) -> None:
        steady = self.at_once.find_steady()
        if steady is None:
            self.deliver()
            return
        stretch = Stretch(steady, self.choices, self.now_ns)
        self.note(stretch)
        self.plans.extend(stretch.take_singly(self.singly))
        stretch.take_at_once(self.at_once)
        for _ in range(stretch.num_steps):
            self.plans.popleft()
        self.now_ns = stretch.times_ns[-1]
        assert list(differences(parts(self.singly), parts(self.at_once))) == []

    def abort(self) -> None:
        if self.num_named:
            self.call(Abort(f"r{between(self.choices, 1, self.num_named)}", 1, "client"))

    def collect(self) -> None:
        outgoing, other = self.singly.collect(), self.at_once.collect()
        assert msgspec.msgpack.encode(outgoing) == msgspec.msgpack.encode(other)

    def note(self, stretch: Stretch) -> None:
        """What the stretches had in them, so that a test can say that nothing was always missing."""
        steady, limits, state = stretch.steady, self.limits, self.at_once._state
        num_steps, size = stretch.num_steps, limits.block_size
        order = state.policies.order
        found = {
            "one step": num_steps == 1,
            "all steps": num_steps == steady.max_steps,
            "fewer steps than in flight": num_steps < limits.pipeline_depth,
            "more steps than in flight": num_steps > limits.pipeline_depth,
            "two blocks of one row": num_steps > 2 * size,
            "no block": bool((steady.starts + num_steps <= steady.num_places).all()),
            "blocks run short": steady.max_steps < (state.rows.max_total - state.rows.num_expected)[steady.rows].min(),
            "blocks noted before": bool(state.full_blocks),
            "blocks that lose their key": limits.prefix_caching and state.pool.num_free < num_steps,
            "rows by rank": order.sorts_running and steady.rows.tolist() != sorted(steady.rows.tolist()),
            "fair": limits.policy == "fair",
            "estimate": limits.admission == "estimate",
            "no prefix caching": not limits.prefix_caching,
            f"depth {limits.pipeline_depth}": True,
        }
        self.seen.update({name: int(has) for name, has in found.items()})

    def finish(self) -> None:
        while self.plans:
            one_of(self.choices, [self.take_stretch, self.deliver])()
        self.collect()
        assert not self.singly._state.running and not self.singly._state.waiting
        assert self.singly.check_integrity() == self.at_once.check_integrity() == []
        assert list(differences(parts(self.singly), parts(self.at_once))) == []


def _choose_limits(choices: Choices) -> SchedulerLimits:
    size = one_of(choices, [4, 1, 2, 16])
    return make_limits(
        max_num_seqs=one_of(choices, [4, 1, 2, 9]),
        max_num_batched_tokens=one_of(choices, [64, 16, 4]),
        pipeline_depth=between(choices, 1, 3),
        watermark=one_of(choices, [0.0, 0.1]),
        num_blocks=one_of(choices, [600, 130, 130]) // size,
        block_size=size,
        prefix_caching=one_of(choices, [True, True, False]),
        max_model_len=130,
        policy=one_of(choices, ["fcfs", "priority", "fair", "cache_aware"]),
        admission=one_of(choices, ["chunk", "whole_prompt", "estimate"]),
        preemption=one_of(choices, ["lifo", "retract", "cost"]),
    )


def run_steady_world(choices: Choices, num_actions: int, seen: Counter[str]) -> None:
    """A whole life."""
    world = SteadyWorld(choices, seen)
    for _ in range(num_actions):
        world.act()
    world.finish()


def run_steady_worlds(seeds: Iterable[int]) -> None:
    """One of each."""
    for seed in seeds:
        run_steady_world(SeededChoices(seed), 60, Counter())


class WatchedScheduler:
    """Stands in for a scheduler: whenever steps could be taken at once, restored copies of it take them."""

    def __init__(self, scheduler: Scheduler, choices: Choices) -> None:
        self._scheduler, self._choices = scheduler, choices
        self.num_stretches = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        plan = self._scheduler.step(now_ns, events)
        steady = self._scheduler.find_steady()
        if steady is not None:
            self.num_stretches += 1
            data = self._scheduler.snapshot()
            one, other = (Scheduler.restore(self._scheduler.limits, data) for _ in range(2))
            stretch = Stretch(steady, self._choices, now_ns)
            stretch.take_singly(one)
            stretch.take_at_once(other)
            assert list(differences(parts(one), parts(other))) == []
        return plan


def run_other_world(choices: Choices, num_transitions: int) -> int:
    """With drafts, sessions, grammars, transfers, deaths, failures. Returns how often steps could be taken at once."""
    world = World(choose_limits(choices))
    num_stretches = 0
    for _ in range(num_transitions):
        watched = WatchedScheduler(world.scheduler, choices)
        world.scheduler = cast(Scheduler, watched)
        go_on(world, choices, one_of(choices, TRANSITIONS))
        num_stretches += watched.num_stretches
        world.scheduler = watched._scheduler if world.scheduler is watched else world.scheduler
    world.finish()
    return num_stretches
