"""The golden numbers of steps, chunks, budgets and prefix hits, from whole runs of the scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from callboard.mailbox.messages.requests import Usage
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())


POLICIES = ("fcfs", "priority")


def golden(name: str) -> object:
    return GOLDEN[name]["value"]


def shares(plan: StepPlan) -> list[int]:
    """Tokens of each row of a plan."""
    return ints(plan.num_tokens)


def long_admit(request_id: str, num_tokens: int, **changes: object) -> object:
    return make_admit(request_id, [1 + (index % 7) for index in range(num_tokens)], ignore_eos=True, **changes)


def engine_with_decodes(num_decodes: int, **changes: object) -> Engine:
    """An engine at depth 1 in which `num_decodes` requests decode, each with a prompt of its own."""
    engine = Engine(make_limits(pipeline_depth=1, max_num_seqs=256, **changes))
    engine.admit(
        *(make_admit(f"d{index}", [index + 1], max_tokens=50, ignore_eos=True) for index in range(num_decodes))
    )
    engine.run_step()
    return engine


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_chunks_2050_thr512(prompt_logprobs: int | None, policy: str) -> None:
    engine = Engine(make_limits(pipeline_depth=1, long_prefill_token_threshold=512, policy=policy))
    engine.admit(long_admit("a", 2050, max_tokens=1, prompt_logprobs=prompt_logprobs))
    engine.run()
    assert [shares(plan) for plan in engine.planned] == [[chunk] for chunk in golden("chunks_2050_thr512")]
    engine.check_all_served()


def test_chunks_without_a_threshold_are_cut_by_the_budget_only() -> None:
    engine = Engine(make_limits(pipeline_depth=1, max_num_batched_tokens=1024))
    engine.admit(long_admit("a", 2050, max_tokens=1))
    engine.run()
    assert [shares(plan) for plan in engine.planned] == [[1024], [1024], [2]]


@pytest.mark.parametrize("policy", POLICIES)
def test_steps_budget4096_100decodes_6000prompt(policy: str) -> None:
    engine = engine_with_decodes(100, max_num_batched_tokens=4096, policy=policy)
    engine.admit(long_admit("p", 6000))
    steps = []
    for _ in range(3):
        (plan,) = engine.run_step()
        decodes = sum(count == 1 for count in shares(plan))
        steps.append({"decode": decodes, "prefill": sum(shares(plan)) - decodes})
    assert steps == golden("steps_budget4096_100decodes_6000prompt")


@pytest.mark.parametrize("policy", POLICIES)
def test_budget2048_200dec_1800prefill(policy: str) -> None:
    engine = engine_with_decodes(200, max_num_batched_tokens=2048, policy=policy)
    engine.admit(long_admit("p", 1800))
    (plan,) = engine.run_step()
    used = sum(shares(plan))
    assert {"used": used, "left": 2048 - used} == golden("budget2048_200dec_1800prefill")
    assert max(shares(plan)) == 1800


def test_budget_share_256_decodes_of_2048() -> None:
    engine = engine_with_decodes(256, max_num_batched_tokens=2048)
    engine.admit(make_admit("one more", [300]))
    (plan,) = engine.run_step()
    assert sum(shares(plan)) / 2048 == golden("budget_share_256_decodes_of_2048")
    assert engine.scheduler.statistics().num_waiting == 1


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("prefix_hit_2000_shared_plus_50", 2000, 2050),
        ("prefix_hit_2005_shared", 2005, 2055),
        ("prefix_hit_exact_repeat_2000", 2000, 2000),
    ],
)
def test_prefix_hit(name: str, first: int, second: int) -> None:
    engine = Engine(make_limits(pipeline_depth=1, max_num_batched_tokens=4096))
    shared = [index % 8 + 1 for index in range(first)]
    engine.admit(make_admit("first", shared, max_tokens=1))
    engine.run()
    (plan,) = engine.admit(make_admit("second", shared + [9] * (second - first), max_tokens=1))
    cached = ints(plan.starts)[0]
    seen = {"blocks": cached // 16, "computed": shares(plan)[0]}
    wanted = GOLDEN[name]["value"]
    assert {key: seen[key] for key in wanted} == wanted
    engine.run()
    finish = engine.clients["second", 0].finish
    assert finish is not None and finish.usage == Usage(second, 1, cached)
    statistics = engine.scheduler.statistics()
    assert (statistics.prefix_cache_queries, statistics.prefix_cache_hits) == (first + second, cached)


def test_a_prompt_whose_log_probabilities_are_wanted_hits_no_block() -> None:
    """The exact repeat of 2,000 tokens that would hit 124 blocks; the third request, which wants none, does."""
    engine = Engine(make_limits(pipeline_depth=1, max_num_batched_tokens=4096))
    prompt = [index % 8 + 1 for index in range(2000)]
    starts = []
    for name, wanted in (("first", 0), ("second", 0), ("third", None)):
        (plan,) = engine.admit(make_admit(name, prompt, max_tokens=1, prompt_logprobs=wanted))
        starts += ints(plan.starts)
        engine.run()
    engine.check_all_served()
    assert starts == [0, 0, 16 * GOLDEN["prefix_hit_exact_repeat_2000"]["value"]["blocks"]]


@pytest.mark.parametrize("depth", [1, 2])
def test_step_wall_ms_depth(depth: int) -> None:
    """Schedule 0.05 ms, prepare 0.1 ms, forward 15 ms: the first two are hidden at depth 2 and added at depth 1."""
    schedule_us, prepare_us, forward_us = 50, 100, 15_000
    scheduler = Scheduler(make_limits(pipeline_depth=depth))
    cpu_us = device_us = 0
    ends: list[int] = []
    pending: list[tuple[int, StepResult]] = []
    events: list[Event] = [WorkerAttached(1), make_admit("a", [1], max_tokens=100, ignore_eos=True)]
    for _ in range(20):
        while (plan := scheduler.step(1000 * cpu_us, events)) is not None:
            events = []
            cpu_us += schedule_us
            device_us = max(device_us, cpu_us + prepare_us) + forward_us
            ends.append(device_us)
            position = np.array(ints(plan.starts)[0] + shares(plan)[0], "<i4").tobytes()
            token = np.array(5, "<i4").tobytes()
            pending.append((device_us, StepResult(1, plan.step, plan.runs, position, token, 0, 1000 * device_us)))
        at_us, result = pending.pop(0)
        cpu_us = max(cpu_us, at_us)
        events = [msgspec.structs.replace(result, num_plans_waiting=len(pending))]
    assert (ends[-1] - ends[-2]) / 1000 == golden("step_wall_ms_depth")[str(depth)]
    statistics = scheduler.statistics()
    assert statistics.num_steady_steps == statistics.num_steps - depth
    assert statistics.num_overlapped_steps == (0 if depth == 1 else statistics.num_steady_steps)
