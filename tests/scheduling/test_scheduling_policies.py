"""What the policies do to whole runs of the scheduler; on their own they are tested in test_policies_*."""

from __future__ import annotations

import random

import pytest

from callboard.mailbox.messages.requests import Abort
from callboard.scheduling import policy as policies
from callboard.scheduling import priority as most_urgent_first
from callboard.scheduling.limits import AdmissionName, PolicyName, PreemptionName
from callboard.scheduling.policy_views import ChooseVictim
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits


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


@pytest.mark.parametrize("policy", policies.ORDERS)
def test_an_abort_of_a_waiting_request_lets_the_next_one_go(policy: PolicyName) -> None:
    engine = Engine(make_limits(max_num_seqs=1, policy=policy))
    engine.admit(admit("a", 1), admit("b", 2), admit("c", 3))
    engine.clients["b", 0].is_ended_here = True
    engine.pump(Abort("b", 1, "client"))
    engine.run()
    engine.check_all_served()
    assert admitted(engine) == ["a", "c"]


# Fair share and the cache ---------------------------------------------------------------------------------------------


def test_a_tenant_with_one_request_does_not_wait_for_ten_of_another() -> None:
    """Each costs 7 tokens of prompt and 2 of output; the other has had 9 when quiet comes, and quiet starts at as much.
    So quiet, which came last, is behind one more."""
    engine = Engine(make_limits(max_num_seqs=1, pipeline_depth=1, policy="fair", fair_aging_tokens_per_s=0))
    engine.admit(*(admit(f"loud{n}", n, tenant="loud") for n in range(10)))
    engine.run_step()
    engine.admit(admit("quiet", 99, tenant="quiet"))
    engine.run()
    engine.check_all_served()
    assert admitted(engine).index("quiet") <= 2
    assert [name for name in admitted(engine) if name != "quiet"] == [f"loud{n}" for n in range(10)]


def test_a_tenant_that_paused_has_saved_nothing_up() -> None:
    """quiet's first request ends, loud is served five more; from then on they take turns."""
    engine = Engine(make_limits(max_num_seqs=1, pipeline_depth=1, policy="fair", fair_aging_tokens_per_s=0))
    engine.admit(admit("quiet0", 50, tenant="quiet"), *(admit(f"loud{n}", n, tenant="loud") for n in range(12)))
    while len(admitted(engine)) < 7:
        engine.run_step()
    engine.admit(*(admit(f"quiet{n}", 50 + n, tenant="quiet") for n in range(1, 5)))
    engine.run()
    engine.check_all_served()
    tenants = [name.rstrip("0123456789") for name in admitted(engine)[7:]]
    assert abs(tenants[:8].count("quiet") - 4) <= 1 and tenants.count("quiet") == 4


def cache_of(engine: Engine, prefix: list[int]) -> None:
    """Serve a request that begins with `prefix`."""
    engine.admit(make_admit("warm", prefix, max_tokens=1))
    engine.run()


@pytest.mark.parametrize(("num_cold", "is_first"), [(20, True), (200, False)])
def test_a_cached_prefix_goes_first_unless_many_wait(num_cold: int, is_first: bool) -> None:
    prefix = list(range(1, 65))
    engine = Engine(make_limits(max_num_seqs=1, pipeline_depth=1, policy="cache_aware"))
    cache_of(engine, prefix)
    engine.admit(
        *(make_admit(f"cold{n}", [9, n % 99, n // 99, 9], max_tokens=1) for n in range(num_cold)),
        make_admit("hot", [*prefix, 7], max_tokens=1),
        make_admit("warmer", [*prefix[:32], 7], max_tokens=1),
    )
    engine.run()
    engine.check_all_served()
    order = admitted(engine)[1:]
    if is_first:
        assert order == ["hot", "warmer", *(f"cold{n}" for n in range(num_cold))]
    else:
        num_before = num_cold + 2 - 128
        assert order[:num_before] == [f"cold{n}" for n in range(num_before)]
        assert order[num_before : num_before + 2] == ["hot", "warmer"], "128 wait"


# Every combination ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("admission", policies.ADMISSIONS)
@pytest.mark.parametrize("preemption", policies.VICTIMS)
@pytest.mark.parametrize("policy", policies.ORDERS)
def test_all_are_served_under_every_combination(
    policy: PolicyName, preemption: PreemptionName, admission: AdmissionName
) -> None:
    """In a pool that holds about two of them, come at different times, with shared prefixes."""
    num_preemptions = 0
    for seed in range(4):
        draw = random.Random(seed)
        limits = make_limits(
            num_blocks=9,
            block_size=2,
            max_num_batched_tokens=8,
            pipeline_depth=draw.randint(1, 3),
            policy=policy,
            preemption=preemption,
            admission=admission,
        )
        engine = Engine(limits)
        for n in range(8):
            fields = {"priority": draw.randint(0, 2), "tenant": draw.choice("ab"), "max_tokens": draw.randint(1, 10)}
            engine.admit(make_admit(f"r{n}", [1, 2, 3, 4, n][draw.randint(0, 4) :], ignore_eos=True, **fields))
            if engine.plans and draw.random() < 0.5:
                engine.run_step()
        engine.run()
        engine.check_all_served()
        num_preemptions += engine.scheduler.statistics().num_preemptions
    assert num_preemptions > 0 or admission != "chunk", "the pool was never short"


def num_preemptions_under(admission: AdmissionName) -> int:
    """Ten requests of 4 tokens that write 28 of the 28 that they may, in a pool that holds three and a half of them."""
    limits = make_limits(num_blocks=28, block_size=4, pipeline_depth=1, prefix_caching=False, admission=admission)
    engine = Engine(limits)
    engine.admit(*(make_admit(f"r{n}", [n] * 4, max_tokens=28, ignore_eos=True) for n in range(10)))
    engine.run()
    engine.check_all_served()
    return engine.scheduler.statistics().num_preemptions


def test_an_estimate_of_the_output_keeps_requests_out_that_would_be_preempted() -> None:
    """At 70 % each is taken to need 24 of its 32 tokens, 6 blocks: four are let in, which is one too many."""
    assert num_preemptions_under("estimate") <= 5 < num_preemptions_under("chunk")


def long_prompts_under(admission: AdmissionName) -> tuple[int, int]:
    """Two prompts of 60 % of the pool in chunks of 16: preemptions, and prompt tokens computed."""
    limits = make_limits(
        num_blocks=100,
        block_size=4,
        pipeline_depth=1,
        prefix_caching=False,
        long_prefill_token_threshold=16,
        admission=admission,
    )
    engine = Engine(limits)
    engine.admit(*(make_admit(f"r{n}", [n] * 240, max_tokens=4, ignore_eos=True) for n in range(2)))
    engine.run()
    engine.check_all_served()
    num_tokens = sum(sum(ints(plan.num_tokens)) for plan in engine.planned)
    return engine.scheduler.statistics().num_preemptions, num_tokens - 2 * 3


def test_a_long_prompt_does_not_begin_beside_one_that_needs_the_room() -> None:
    """By chunk both run in step until the pool is full at 200 tokens each, and one begins again."""
    assert long_prompts_under("whole_prompt") == (0, 480)
    num_preemptions, num_computed = long_prompts_under("chunk")
    assert num_preemptions == 1 and 480 + 180 <= num_computed <= 480 + 200


# The checks can fail --------------------------------------------------------------------------------------------------


FAULTS: dict[str, ChooseVictim] = {
    "first": lambda running, view: running[0],
    "second": lambda running, view: running[1],
}


def run_short_of_blocks(policy: PolicyName) -> None:
    """Five of different urgency in a pool for two, over and over."""
    for seed in range(50):
        draw = random.Random(seed)
        limits = make_limits(num_blocks=9, block_size=2, pipeline_depth=1, prefix_caching=False, policy=policy)
        engine = Engine(limits)
        for n in range(1, 6):
            engine.admit(make_admit(f"r{n}", [n], priority=draw.randint(0, 3), max_tokens=8, ignore_eos=True))
            engine.run_step()
        engine.run()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_victim_with_a_better_claim_is_found(policy: PolicyName, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policies.VICTIMS, "lifo", FAULTS[fault])
    with pytest.raises(AssertionError, match="goes"):
        run_short_of_blocks(policy)


def test_rows_in_another_order_than_the_victims_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are planned as they were admitted though they were to be by urgency, so the last is not the least urgent."""
    monkeypatch.setitem(policies.ORDERS, "priority", most_urgent_first.ORDER._replace(sorts_running=False))
    with pytest.raises(AssertionError, match="goes"):
        run_short_of_blocks("priority")
