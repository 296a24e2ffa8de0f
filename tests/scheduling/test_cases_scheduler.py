"""Faults that users of other engines reported, in their schedulers."""

from __future__ import annotations

import random

import pytest

from callboard.mailbox.messages.admission import Admit
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_model import EOS, true_end
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits


def cached_tokens(engine: Engine, request_id: str) -> int:
    finish = engine.clients[request_id, 0].finish
    assert finish is not None
    return finish.usage.cached_tokens


@pytest.mark.parametrize("logprobs", [None, 5])
@pytest.mark.parametrize("num_tokens", [blocks * 16 + more for blocks in (1, 2, 5) for more in (-1, 0, 1)])
def test_p02_a_prompt_that_is_cached_whole_still_computes_a_token(num_tokens: int, logprobs: int | None) -> None:
    engine = Engine(make_limits())
    prompt = [index % 7 + 1 for index in range(num_tokens)]
    for name in ("first", "second"):
        engine.admit(make_admit(name, prompt, logprobs=logprobs))
        engine.run()
    engine.check_all_served()
    assert engine.clients["first", 0].token_ids == engine.clients["second", 0].token_ids
    assert (num_tokens // 16 - (num_tokens % 16 == 0)) * 16 == cached_tokens(engine, "second") < num_tokens


def test_p04_requests_of_one_step_do_not_take_each_others_cached_blocks() -> None:
    """Some of those with the warm prefix wait for several steps behind fillers that need most of the free blocks; the
    worker of the tests compares every K/V that is read with what it should be."""
    draw = random.Random(0)
    engine = Engine(make_limits(num_blocks=24, block_size=4, max_num_seqs=16, max_num_batched_tokens=64))
    prefix = [index % 7 + 1 for index in range(20)]
    engine.admit(make_admit("warm", prefix, max_tokens=1))
    engine.run()
    num_hits = 0
    for turn in range(50):
        burst: list[Admit] = [make_admit(f"{turn} first", [*prefix, 1], max_tokens=6, ignore_eos=True)]
        for filler in range(6):
            prompt = [draw.randint(1, 8) for _ in range(draw.randint(9, 13))]
            burst.append(make_admit(f"{turn} filler {filler}", prompt, max_tokens=6, ignore_eos=True))
        burst += [make_admit(f"{turn} late {n}", [*prefix, n], max_tokens=6, ignore_eos=True) for n in (2, 3)]
        engine.admit(*burst)
        engine.run()
        num_hits += sum(cached_tokens(engine, admit.request_id) > 0 for admit in burst)
    engine.check_all_served()
    assert num_hits >= 50 and engine.scheduler.statistics().num_preemptions > 0


@pytest.mark.parametrize("chunk", [0, 7])
def test_p05_log_probabilities_of_a_prompt_do_not_depend_on_what_is_cached(chunk: int) -> None:
    engine = Engine(make_limits(long_prefill_token_threshold=chunk))
    prompt = [index % 7 + 1 for index in range(3 * 16 + 5)]
    for name in ("first", "second"):  # the client compares all entries with those of the model
        engine.admit(make_admit(name, prompt, max_tokens=1, logprobs=1, prompt_logprobs=1))
        engine.run()
        assert cached_tokens(engine, name) == 0
    engine.admit(make_admit("third", prompt, max_tokens=1))
    engine.run()
    engine.check_all_served()
    assert cached_tokens(engine, "third") == 48


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_c02_chunks_of_a_prompt_yield_no_token(depth: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth, max_num_batched_tokens=64))
    prompt = [index % 7 + 1 for index in range(6 * 64 - 9)]
    engine.admit(make_admit("a", prompt, max_tokens=3, ignore_eos=True, logprobs=0))
    for _ in range(5):
        engine.run_step()
        assert engine.clients["a", 0].token_ids == []
    engine.run()
    engine.check_all_served()
    statistics = engine.scheduler.statistics()
    assert len(engine.clients["a", 0].token_ids) == statistics.generation_tokens == 3
    assert (statistics.num_steps, statistics.num_prefilled) == (8, 1)


@pytest.mark.parametrize(("policy", "prefix_caching"), [("fcfs", True), ("priority", False)])
def test_c04_a_request_that_comes_back_is_not_preempted_over_and_over(policy: str, prefix_caching: bool) -> None:
    """Four requests of a third of the pool's tokens each, 200 tokens out, a chunk budget of a tenth of the pool."""
    limits = make_limits(
        num_blocks=60, max_num_batched_tokens=96, prefix_caching=prefix_caching, policy=policy, max_num_seqs=8
    )
    engine = Engine(limits)
    prompts = {name: [number] * (60 * 16 // 3) for number, name in enumerate("abcd", 1)}
    engine.admit(*(make_admit(name, prompt, max_tokens=200, ignore_eos=True) for name, prompt in prompts.items()))
    engine.run()
    engine.check_all_served()
    placed = [new.request_id for plan in engine.planned for new in plan.new_rows]
    assert max(placed.count(name) for name in prompts) - 1 <= 3
    num_computed = sum(sum(ints(plan.num_tokens)) for plan in engine.planned)
    assert num_computed - 4 * 199 < 4 * sum(map(len, prompts.values()))


def test_m05_min_tokens_holds_against_stop_tokens_and_every_eos() -> None:
    """Greedy text of 30 tokens; then its fourth token is a stop token and min_tokens is 25; then every EOS counts."""
    engine = Engine(make_limits())
    free = make_admit("free", [1, 2, 3], max_tokens=30, ignore_eos=True)
    fourth = true_end(free, engine.limits)[0][3]
    stop_token = make_admit("stop token", [1, 2, 3], max_tokens=30, min_tokens=25, stop_token_ids=(fourth,))
    both_eos = make_admit("eos", [1, 2, 3], max_tokens=20, min_tokens=10, eos_token_ids=(EOS, 4))
    engine.admit(free, stop_token, both_eos)
    engine.run()
    engine.check_all_served()
    assert len(engine.clients["stop token", 0].token_ids) >= 25
    assert not {EOS, fourth} & set(engine.clients["stop token", 0].token_ids[:25])
    output = engine.clients["eos", 0].token_ids
    assert len(output) >= 11 and not {EOS, 4} & set(output[:10])
