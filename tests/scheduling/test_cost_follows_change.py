"""What a step costs follows what changes in it: what nobody can use is not asked for."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

import pytest

from callboard.mailbox.messages.requests import Abort
from callboard.scheduling import admission
from callboard.scheduling.limits import AdmissionName, PolicyName
from callboard.scheduling.policy_views import RunningCounts
from callboard.scheduling.request import Rank, Request
from callboard.scheduling.row_arrays import Int64s
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_rows import ints
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.stage import Stage


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "cache_aware"])
@pytest.mark.parametrize("short", ["rows", "budget"])
def test_while_nobody_can_be_admitted_the_order_is_not_asked_who_is_next(policy: PolicyName, short: str) -> None:
    """A choice may cost what all that wait cost: tenants are compared, or prefixes looked up."""
    limits = {"max_num_seqs": 2} if short == "rows" else {"max_num_batched_tokens": 2}
    stage = Stage(make_limits(policy=policy, pipeline_depth=1, **limits))
    stage.at(1, *(make_admit(f"r{n}", [n], ignore_eos=True, max_tokens=50) for n in range(4)))
    stage.end_step(2)
    state = stage.scheduler._state
    assert (len(state.running), len(state.lines)) == (2, 2)

    def choose(*_args: object) -> NoReturn:
        raise AssertionError("the order is asked")

    state.policies = state.policies._replace(order=state.policies.order._replace(choose=choose))
    for now_ns in range(3, 10):
        stage.end_step(now_ns)
    assert len(stage.planned) == 9


def test_rows_are_not_sorted_again_while_the_same_ones_run() -> None:
    """By rank, under an order that plans them so."""
    stage = Stage(make_limits(policy="priority", pipeline_depth=1, block_size=16))
    admits = [make_admit(f"r{n}", [n], ignore_eos=True, max_tokens=50, priority=-n) for n in range(4)]
    stage.at(1, *admits[:3])
    stage.end_step(2)
    state = stage.scheduler._state
    num_asked = 0

    def rank(request: Request) -> Rank:
        nonlocal num_asked
        num_asked += 1
        return request.rank

    state.policies = state.policies._replace(order=state.policies.order._replace(rank=rank))
    for now_ns in range(3, 10):
        stage.end_step(now_ns)
    assert num_asked == 0
    assert ints(stage.planned[-1].rows) == [0, 1, 2]
    stage.end_step(10, admits[3])
    stage.end_step(11)
    assert num_asked > 0
    assert ints(stage.planned[-1].rows) == [3, 0, 1, 2], "the most urgent one came last"
    stage.end_step(12, Abort("r2", 1, "gone"))
    assert ints(stage.planned[-1].rows) == [3, 1, 2]


@pytest.mark.parametrize(("rule", "is_asked"), [("chunk", False), ("whole_prompt", True), ("estimate", True)])
def test_running_rows_are_counted_for_the_admission_rules_that_look_at_them(
    monkeypatch: pytest.MonkeyPatch, rule: AdmissionName, is_asked: bool
) -> None:
    num_counted = 0

    def counted(*counts: Int64s) -> RunningCounts:
        nonlocal num_counted
        num_counted += 1
        return RunningCounts(*counts)

    monkeypatch.setattr(admission, "RunningCounts", counted)
    stage = Stage(make_limits(admission=rule, pipeline_depth=1))
    stage.at(1, *(make_admit(f"r{n}", [n], max_tokens=50) for n in range(3)))
    assert len(stage.scheduler._state.running) == 3
    assert num_counted == (3 if is_asked else 0)


class CountedList(list[str]):
    """Counts what is read of it."""

    num_read = 0

    def __getitem__(self, index: SupportsIndex) -> str:  # type: ignore[override]
        self.num_read += 1
        return super().__getitem__(index)


def test_a_row_that_says_more_than_its_token_makes_nobody_look_at_the_other_rows() -> None:
    """Who a row belongs to is read when the row is given away, and not in each step for all of them."""
    engine = Engine(make_limits(max_num_seqs=16, num_blocks=200))
    admits = [make_admit(f"r{n}", [n], ignore_eos=True, max_tokens=40 + n) for n in range(15)]
    engine.admit(*admits, make_admit("says", [20], ignore_eos=True, max_tokens=60, logprobs=1))
    for _ in range(5):
        engine.run_step()
    outbox = engine.scheduler._state.outbox
    outbox._request_ids = read = CountedList(outbox._request_ids)
    for _ in range(10):
        engine.run_step()
    assert len(engine.scheduler._state.running) == 16
    assert read.num_read == 0
    engine.run()
    engine.check_all_served()
    assert read.num_read > 0, "some ended, and the rest are others than before"
