"""The policies against brute force, and what they do to whole runs of the scheduler."""

from __future__ import annotations

import random

import pytest

from callboard.mailbox.messages.requests import Abort
from callboard.scheduling.limits import PolicyName
from callboard.scheduling.policy import VICTIMS
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits

LIMITS = make_limits()


def admitted(engine: Engine) -> list[str]:
    """Requests in the order in which they took a row, each as often as it did."""
    return [new.request_id for plan in engine.planned for new in plan.new_rows]


def admit(name: str, number: int, priority: int = 0, **changes: object) -> object:
    fields = {"max_tokens": 2, "ignore_eos": True, "priority": priority, "arrival_ns": 0} | changes
    return make_admit(name, [number] * 7, **fields)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("fcfs", ["first", "low", "high", "early", "late"]), ("priority", ["first", "high", "early", "late", "low"])],
)
def test_who_waits_is_admitted_by_priority_then_arrival_then_order_of_coming(
    policy: PolicyName, expected: list[str]
) -> None:
    engine = Engine(make_limits(max_num_seqs=1, policy=policy))
    engine.admit(admit("first", 1, priority=9))
    engine.admit(
        admit("low", 2, priority=5),
        admit("high", 3, priority=-1, arrival_ns=9),
        admit("early", 4, arrival_ns=1),
        admit("late", 5, arrival_ns=1),
    )
    engine.run()
    engine.check_all_served()
    assert admitted(engine) == expected, "an urgent request does not take the row of one that runs"


def test_the_victim_is_the_least_urgent_and_may_be_the_one_that_asks() -> None:
    """Three rows of 2 blocks each fill the pool; the one admitted in between is the least urgent."""
    limits = make_limits(pipeline_depth=1, num_blocks=6, block_size=4, prefix_caching=False, policy="priority")
    engine = Engine(limits)
    for number, (name, priority) in enumerate((("a", 1), ("b", 3), ("c", 2)), 1):
        engine.admit(make_admit(name, [number] * 5, priority=priority, max_tokens=8, ignore_eos=True))
        plans = engine.run_step()
    rows = {new.request_id: new.row for plan in engine.planned for new in plan.new_rows}
    while engine.scheduler.statistics().num_preemptions == 0:
        plans = engine.run_step()
    (plan,) = plans
    assert ints(plan.removed_rows) == [rows["b"]], "b is the least urgent"
    assert ints(plan.rows) == [rows["a"], rows["c"]], "the most urgent has its tokens first"
    engine.run()
    engine.check_all_served()
    assert admitted(engine)[3:] == ["b"]


def test_who_asks_and_is_the_least_urgent_goes_itself() -> None:
    limits = make_limits(pipeline_depth=1, num_blocks=4, block_size=4, prefix_caching=False, policy="priority")
    engine = Engine(limits)
    engine.admit(admit("low", 1, 5, max_tokens=9), make_admit("high", [2] * 5, max_tokens=8, ignore_eos=True))
    while engine.scheduler.statistics().num_preemptions == 0:
        plans = engine.run_step()
    assert [ints(plan.rows) for plan in plans] == [[0]], "high alone, in its row: the urgent were placed first"
    engine.run()
    engine.check_all_served()


def test_a_preempted_request_keeps_its_place_behind_more_urgent_ones_that_came_later() -> None:
    limits = make_limits(pipeline_depth=1, num_blocks=4, block_size=4, prefix_caching=False, policy="priority")
    engine = Engine(limits)
    engine.admit(admit("a", 1, 0, max_tokens=6), admit("b", 2, 1, max_tokens=6))
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.run_step()
    engine.admit(admit("later", 3, 1, arrival_ns=1), admit("urgent", 4, 0, arrival_ns=1))
    engine.run()
    engine.check_all_served()
    assert admitted(engine) == ["a", "b", "urgent", "b", "later"]


def test_a_resumed_request_comes_back_to_the_place_of_its_arrival() -> None:
    engine = Engine(make_limits(max_num_seqs=1, pipeline_depth=1, policy="priority"))
    engine.admit(admit("old", 1, arrival_ns=1, max_tokens=5))
    engine.run_step()
    engine.lose_scheduler()
    engine.admit(admit("new", 2, arrival_ns=2))
    engine.resume(("old", 0))
    engine.attach()
    engine.run()
    engine.check_all_served()
    assert admitted(engine) == ["old", "new"]


def test_an_urgent_long_prompt_leaves_a_token_to_each_row_behind_it() -> None:
    """It is planned first and could use the whole budget of 8 for 5 steps."""
    engine = Engine(make_limits(pipeline_depth=1, max_num_batched_tokens=8, max_num_seqs=4, policy="priority"))
    engine.admit(*(make_admit(f"r{n}", [n], max_tokens=20, ignore_eos=True, priority=1) for n in (1, 2, 3)))
    engine.admit(make_admit("urgent", [4] * 40, max_tokens=2, ignore_eos=True))
    engine.run()
    engine.check_all_served()
    with_prompt = [ints(plan.num_tokens) for plan in engine.planned if len(ints(plan.rows)) == 4]
    assert with_prompt[:3] == [[1, 1, 1, 5], [5, 1, 1, 1], [5, 1, 1, 1]]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_an_abort_of_a_waiting_request_lets_the_next_one_go(policy: PolicyName) -> None:
    engine = Engine(make_limits(max_num_seqs=1, policy=policy))
    engine.admit(admit("a", 1), admit("b", 2), admit("c", 3))
    engine.clients["b", 0].is_ended_here = True
    engine.pump(Abort("b", 1, "client"))
    engine.run()
    engine.check_all_served()
    assert admitted(engine) == ["a", "c"]


# The checks can fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_victim_with_a_better_claim_is_found(policy: PolicyName, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of those that run goes, and not the last."""
    monkeypatch.setitem(VICTIMS, "lifo", lambda running, view: running[1])
    with pytest.raises(AssertionError, match="stays"):
        for seed in range(50):
            draw = random.Random(seed)
            limits = make_limits(num_blocks=9, block_size=2, pipeline_depth=1, prefix_caching=False, policy=policy)
            engine = Engine(limits)
            for n in range(1, 6):
                engine.admit(make_admit(f"r{n}", [n], priority=draw.randint(0, 3), max_tokens=8, ignore_eos=True))
                engine.run_step()
            engine.run()
