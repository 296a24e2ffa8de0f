"""Steps that fail, workers that die, and how the request is found that is to blame: rule by rule."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from callboard.errors import ProtocolViolation
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.events import TokenizerGone, WorkerAttached, WorkerGone
from callboard.scheduling.scheduler import Scheduler
from callboard.scheduling.trial import Trial
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_model import next_token
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits


def admits(count: int, **changes: object) -> list[object]:
    """Requests r1, r2, ... with prompts of their own."""
    fields = {"max_tokens": 4, "ignore_eos": True} | changes
    return [make_admit(f"r{n}", [n] * 3, **fields) for n in range(1, count + 1)]


def rows_of(plans: list[StepPlan]) -> list[list[str]]:
    """The new rows of each plan."""
    return [[row.request_id for row in plan.new_rows] for plan in plans]


def failed(plan: StepPlan, error: str = "ValueError: bad") -> StepResult:
    return StepResult(plan.epoch, plan.step, b"", b"", b"", 0, 0, outcome=StepOutcome.FAILED, error=error)


def void(plan: StepPlan) -> StepResult:
    return StepResult(plan.epoch, plan.step, b"", b"", b"", 0, 0, outcome=StepOutcome.VOID)


def fill(scheduler: Scheduler, *events: object) -> list[StepPlan]:
    """Every plan that follows the events."""
    plans = []
    plan = scheduler.step(0, events)  # type: ignore[arg-type]
    while plan is not None:
        plans.append(plan)
        plan = scheduler.step(0, ())
    return plans


# The trial ------------------------------------------------------------------------------------------------------------


def groups(trial: Trial) -> list[str]:
    return ["".join(name for name, _ in group) for group in trial.groups()]


def keys(names: str) -> list[tuple[str, int]]:
    return [(name, 0) for name in names]


def test_suspects_are_tried_in_halves_the_failed_half_first() -> None:
    trial = Trial()
    trial.split(keys("abcdefg"))
    assert groups(trial) == ["abcd", "efg"]
    for name in "abcd":
        trial.acquit((name, 0))
    assert groups(trial) == ["efg"]
    trial.split(keys("efg"))
    assert groups(trial) == ["ef", "g"]
    trial.split(keys("ef"))
    assert groups(trial) == ["e", "f", "g"]
    trial.close()
    assert not trial.is_active


def test_those_of_a_group_that_were_not_in_its_failed_step_are_tried_behind_it() -> None:
    trial = Trial()
    trial.split(keys("abcdefgh"))
    trial.acquit(("a", 0))
    trial.split(keys("bc"))
    assert groups(trial) == ["b", "c", "d", "efgh"]


def test_the_isolated_are_tried_one_by_one_before_all_others() -> None:
    trial = Trial()
    trial.split(keys("abcd"))
    trial.isolate(keys("bd"))
    assert groups(trial) == ["b", "d", "a", "c"]


def test_a_single_suspect_of_a_larger_step_is_tried_alone() -> None:
    trial = Trial()
    trial.split(keys("a"))
    assert groups(trial) == ["a"]
    trial.acquit(("a", 0))
    assert not trial.is_active


# Failed steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_request_that_fails_alone_ends_with_the_error(depth: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth))
    engine.raises["r1", 0] = 4
    engine.admit(*admits(1))
    engine.run()
    client = engine.clients["r1", 0]
    assert client.finish is not None and client.finish.reason == "error"
    assert client.finish.message == "the step that computed this request failed: RuntimeError: a planted fault"
    assert len(client.token_ids) == client.finish.usage.completion_tokens == 2, "positions 3 and 4 were sampled before"
    statistics = engine.scheduler.statistics()
    assert (statistics.num_failed_steps, statistics.num_poisoned, statistics.num_finished) == (1, 1, 1)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bad", range(1, 9))
def test_one_of_eight_is_found_by_three_more_failures_and_the_others_lose_nothing(depth: int, bad: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth))
    engine.raises[f"r{bad}", 0] = 4
    engine.admit(*admits(8))
    engine.run()
    engine.check_all_served()
    errors = [key[0] for key, client in engine.clients.items() if client.finish and client.finish.reason == "error"]
    assert errors == [f"r{bad}"]
    statistics = engine.scheduler.statistics()
    assert statistics.num_failed_steps == 4, "8, 4, 2, 1"
    assert statistics.num_preemptions == 0, "a failure is no shortage"


def test_the_groups_of_a_trial_in_plans() -> None:
    """The third of four is bad at the last token of its prompt: 4, then 2 + 2, then 1, and then all that is left."""
    engine = Engine(make_limits(pipeline_depth=2))
    engine.raises["r3", 0] = 2
    engine.admit(*admits(4, max_tokens=2))
    engine.run()
    engine.check_all_served()
    named = [plan for plan in engine.planned if plan.new_rows]
    assert rows_of(named) == [["r1", "r2", "r3", "r4"], ["r1", "r2"], ["r3", "r4"], ["r3"], ["r1", "r2", "r4"]]
    assert [plan.is_fresh for plan in named] == [False, True, False, True, True]


def test_the_plan_after_a_failure_waits_for_all_in_flight_and_names_its_rows_in_full() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=3, block_size=2))
    plans = fill(scheduler, WorkerAttached(1), *admits(1, max_tokens=9))
    assert [plan.step for plan in plans] == [0, 1, 2]
    token = np.array([next_token([1, 1, 1], 0)], "<i4").tobytes()
    done = StepResult(1, 0, plans[0].runs, np.array([3], "<i4").tobytes(), token, 0, 0, num_plans_waiting=2)
    (fourth,) = fill(scheduler, done, make_admit("late", [9] * 5, ignore_eos=True))
    assert rows_of([fourth]) == [["late"]]
    assert fill(scheduler, failed(plans[1])) == [] and not scheduler.can_plan
    assert fill(scheduler, void(plans[2])) == [] and not scheduler.can_plan
    (fresh, *_) = fill(scheduler, void(fourth))
    assert fresh.is_fresh and rows_of([fresh]) == [["late"]], "r1 was alone in the failed step"
    assert fresh.new_rows[0].run > 2, "a run of its own"
    assert (ints(fresh.starts), ints(fresh.removed_rows)) == ([0], []), "nothing of the void step is found"
    statistics = scheduler.statistics()
    assert (statistics.num_steady_steps, statistics.num_overlapped_steps) == (1, 1), "only step 0 was run"


def test_one_that_is_left_of_several_is_tried_and_not_ended() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    (plan,) = fill(scheduler, WorkerAttached(1), *admits(2))
    (fresh,) = fill(scheduler, Abort("r2", 1, "client"), failed(plan))
    assert rows_of([fresh]) == [["r1"]], "r2 may have been the bad one"
    fill(scheduler, failed(fresh))
    assert scheduler.collect().deltas["tokenizer"].finishes[0].reason == "error"


def test_one_that_was_preempted_since_is_as_suspect_as_the_others() -> None:
    """At depth 2 the plan behind the failing one preempts the second request for want of blocks."""
    engine = Engine(make_limits(pipeline_depth=2, num_blocks=4, block_size=4, prefix_caching=False))
    engine.raises["r2", 0] = 7
    engine.admit(*(make_admit(f"r{n}", [n] * 7, max_tokens=6, ignore_eos=True) for n in (1, 2)))
    assert engine.scheduler.statistics().num_preemptions == 0
    engine.run_step()
    assert engine.scheduler.statistics().num_preemptions == 1 and len(engine.plans) == 2, "before it has failed"
    engine.run()
    engine.check_all_served()
    assert [client.finish.reason for client in engine.clients.values() if client.finish] == ["length", "error"]


def test_nobody_is_to_blame_when_it_does_not_happen_again() -> None:
    engine = Engine(make_limits())
    engine.admit(*admits(5))
    assert engine.worker is not None
    engine.worker.num_to_fail = 1
    engine.run()
    engine.check_all_served()
    assert all(client.finish.reason == "length" for client in engine.clients.values() if client.finish)
    assert engine.scheduler.statistics().num_poisoned == 0


def test_new_requests_wait_while_there_is_a_trial() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(*admits(2))
    assert engine.worker is not None
    engine.worker.num_to_fail = 1
    engine.run_step()
    engine.admit(make_admit("new", [7]))
    (plan,) = engine.run_step()
    assert rows_of([plan]) == [["r2"]]
    (plan,) = engine.run_step()
    assert rows_of([plan]) == [["new"]] and len(ints(plan.rows)) == 3
    engine.run()
    engine.check_all_served()


def test_a_group_that_does_not_fit_at_once_is_tried_one_after_the_other() -> None:
    """Each prompt fills three of four blocks, so those that were tried give theirs up."""
    engine = Engine(make_limits(pipeline_depth=2, num_blocks=4, block_size=4, watermark=0.5))
    prompt = [1] * 4
    engine.raises["r3", 0] = 5
    engine.admit(*(make_admit(f"r{n}", [*prompt, n], max_tokens=6, ignore_eos=True) for n in range(1, 5)))
    engine.run()
    engine.check_all_served()
    engine.admit(*(make_admit(f"s{n}", [n] * 11, max_tokens=3, ignore_eos=True) for n in range(1, 5)))
    engine.raises["s4", 0] = 12
    engine.run()
    engine.check_all_served()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (void, "result of step 0 is VOID, but no step before it failed"),
        (lambda plan: msgspec.structs.replace(failed(plan), step=4), "step 0 is the oldest in flight"),
    ],
)
def test_an_outcome_that_cannot_be_is_a_fault(make: object, message: str) -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    (plan,) = fill(scheduler, WorkerAttached(1), *admits(1))
    with pytest.raises(ProtocolViolation, match=message):
        scheduler.step(0, [make(plan)])  # type: ignore[operator]


def test_a_step_that_was_run_behind_a_failed_one_is_a_fault() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    first, second = fill(scheduler, WorkerAttached(1), *admits(1))
    with pytest.raises(ProtocolViolation, match="is DONE, but a step before it failed"):
        scheduler.step(0, [failed(first), msgspec.structs.replace(void(second), outcome=StepOutcome.DONE)])


# Deaths of the worker -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_that_is_in_flight_at_two_deaths_ends_with_an_error(depth: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth))
    engine.kills["r1", 0] = 4
    engine.admit(*admits(1))
    engine.run()
    client = engine.clients["r1", 0]
    assert client.finish is not None and client.finish.reason == "error" and client.finish.message is not None
    assert "in the plans in flight at two deaths of the worker" in client.finish.message
    assert len(client.token_ids) == 2
    assert engine.epoch == 3, "the first worker and two more"


def test_a_token_between_two_deaths_clears_a_request() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(*admits(1, max_tokens=6))
    for _ in range(5):
        engine.lose_worker()
        engine.attach()
        engine.run_step()
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_poisoned == 0


def test_deaths_with_nothing_in_flight_do_not_count() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    scheduler.step(0, [*admits(1)])  # type: ignore[list-item]
    scheduler.step(0, [WorkerAttached(1)])
    scheduler.step(0, [WorkerGone(), WorkerGone()])
    scheduler.step(0, [WorkerAttached(2), WorkerGone()])
    assert scheduler.statistics().num_poisoned == 0


@pytest.mark.parametrize("bad", range(1, 5))
def test_one_of_four_that_kills_is_found_by_a_third_death_and_the_others_are_spared(bad: int) -> None:
    engine = Engine(make_limits(pipeline_depth=2))
    engine.kills[f"r{bad}", 0] = 4
    engine.admit(*admits(4))
    engine.run()
    engine.check_all_served()
    errors = [key[0] for key, client in engine.clients.items() if client.finish and client.finish.reason == "error"]
    assert errors == [f"r{bad}"]
    assert engine.epoch == 4, "three deaths"
    assert engine.scheduler.statistics().num_poisoned == 1


def test_what_was_in_flight_behind_a_failed_step_was_not_run_and_is_not_blamed_for_a_death() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    first, _ = fill(scheduler, WorkerAttached(1), *admits(2))
    scheduler.step(0, [failed(first), WorkerGone()])
    assert [request.num_deaths for request in scheduler._state.requests()] == [0, 0]
    fill(scheduler, WorkerAttached(2))
    fill(scheduler, WorkerGone())
    deaths = {request.key: request.num_deaths for request in scheduler._state.requests()}
    assert [deaths[key] for key in sorted(deaths)] == [1, 0], "the first is on trial, alone"


def test_a_culprit_that_is_resumed_within_the_grace_is_answered_and_not_tried_again() -> None:
    """Its tokenizer died with the sentence unread, or before it was sent."""
    scheduler = Scheduler(make_limits(resume_grace_s=10.0))
    plan = scheduler.step(1, [WorkerAttached(1), make_admit("r", [1, 2, 3])])
    assert plan is not None
    scheduler.step(2, [TokenizerGone("tokenizer"), failed(plan, "planted")])
    assert scheduler.collect().deltas == {}, "there is nobody to tell"
    assert scheduler.step(10_000_000_001, [make_admit("r", [1, 2, 3], attempt=2, tokenizer="tokenizer")]) is None
    (delta,) = scheduler.collect().deltas.values()
    assert (delta.attempts, delta.finishes[0].reason) == ([2], "error")
    assert "planted" in str(delta.finishes[0].message)
    assert scheduler.step(10_000_000_002, [make_admit("r", [1, 2, 3])]) is not None, "a new request of that name"
    scheduler.step(10_000_000_003, [Abort("r", 1, "test")])
    assert scheduler.step(20_000_000_000, [make_admit("r", [1, 2, 3], attempt=3)]) is not None, "the grace is over"
