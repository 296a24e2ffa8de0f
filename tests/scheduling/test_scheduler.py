"""The scheduler's rules one by one."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from callboard.errors import ProtocolViolation
from callboard.mailbox.messages.admission import Stop
from callboard.mailbox.messages.requests import Abort, Usage
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.scheduling.events import Event, WorkerAttached, WorkerGone
from callboard.scheduling.leak_ledger import Leak
from callboard.scheduling.request import RequestState
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_model import EOS, next_token, truth
from callboard.tests.scheduling.fake_worker import board_bytes, ints, make_admit, make_limits


def shares(plan: StepPlan) -> list[int]:
    """Tokens of each row of a plan."""
    return ints(plan.num_tokens)


def long_admit(request_id: str, num_tokens: int, **changes: object) -> object:
    return make_admit(request_id, [1 + (index % 7) for index in range(num_tokens)], ignore_eos=True, **changes)


# Running and admission ------------------------------------------------------------------------------------------------


def test_a_long_prompt_runs_beside_the_requests_behind_it() -> None:
    engine = Engine(make_limits(pipeline_depth=1, max_num_batched_tokens=8, long_prefill_token_threshold=6))
    engine.admit(long_admit("long", 40), make_admit("short", [2, 2], max_tokens=20, ignore_eos=True))
    for _ in range(3):
        engine.run_step()
    assert [shares(plan) for plan in engine.planned] == [[6, 2], [6, 1], [6, 1], [6, 1]]


def test_when_the_budget_is_short_of_rows_the_last_are_skipped() -> None:
    engine = Engine(make_limits(pipeline_depth=2, max_num_batched_tokens=2, max_num_seqs=3))
    engine.admit(*(make_admit(f"r{index}", [index + 1], max_tokens=3, ignore_eos=True) for index in range(3)))
    assert [ints(plan.rows) for plan in engine.planned] == [[0, 1], [0, 1]]
    engine.run()
    engine.check_all_served()


def test_a_shared_prefix_is_found_within_the_same_plan_as_far_as_it_is_scheduled() -> None:
    engine = Engine(make_limits(pipeline_depth=1, long_prefill_token_threshold=20, block_size=4))
    prompt = [index % 5 + 1 for index in range(40)]
    (plan,) = engine.admit(make_admit("a", prompt), make_admit("b", prompt))
    assert ints(plan.starts) == [0, 20]
    assert shares(plan) == [20, 20]
    engine.run()
    engine.check_all_served()


def test_output_blocks_are_found_once_their_tokens_are_known() -> None:
    engine = Engine(make_limits(block_size=4))
    first = make_admit("a", [1, 2, 3], max_tokens=10, ignore_eos=True)
    engine.admit(first)
    engine.run()
    conversation = [1, 2, 3, *truth(first, engine.limits)[0]]
    (plan,) = engine.admit(make_admit("b", [*conversation, 1, 1], max_tokens=1))
    assert ints(plan.starts) == [12]
    engine.run()
    engine.check_all_served()


def test_another_salt_shares_nothing() -> None:
    engine = Engine(make_limits(block_size=4))
    engine.admit(make_admit("a", [1] * 20, cache_salt="x"), make_admit("b", [1] * 20, cache_salt="y"))
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().prefix_cache_hits == 0


def test_the_watermark_holds_back_admission_while_something_runs() -> None:
    engine = Engine(make_limits(num_blocks=10, block_size=4, watermark=0.5, prefix_caching=False))
    engine.admit(long_admit("large", 24, max_tokens=2))
    assert engine.scheduler.statistics().num_running == 1, "alone it may take more than the watermark leaves"
    engine.admit(make_admit("small", [1], max_tokens=2))
    assert engine.scheduler.statistics().num_waiting == 1
    engine.run()
    engine.check_all_served()


def test_admission_is_first_come_first_served_with_no_overtaking() -> None:
    engine = Engine(make_limits(num_blocks=10, block_size=4, prefix_caching=False, pipeline_depth=1))
    engine.admit(long_admit("first", 24, max_tokens=2), long_admit("second", 24), make_admit("third", [1]))
    assert [new.request_id for new in engine.planned[0].new_rows] == ["first"]
    assert engine.scheduler.statistics().num_waiting == 2


def test_known_tokens_of_new_rows_are_spread_over_plans() -> None:
    engine = Engine(make_limits(pipeline_depth=3, max_plan_tokens=100))
    engine.admit(*(make_admit(f"r{index}", [index + 1] * 40, max_tokens=5) for index in range(5)))
    assert [len(plan.new_rows) for plan in engine.planned] == [2, 2, 1]


# Preemption -----------------------------------------------------------------------------------------------------------


def test_the_last_admitted_is_preempted_and_nothing_is_admitted_in_that_step() -> None:
    engine = Engine(make_limits(pipeline_depth=1, num_blocks=4, block_size=4, prefix_caching=False))
    names = ("first", "second")
    engine.admit(*(make_admit(name, [n] * 7, max_tokens=6, ignore_eos=True) for n, name in enumerate(names, 1)))
    engine.admit(make_admit("third", [3], max_tokens=1))
    engine.run_step()  # position 7: fits the second block
    (plan,) = engine.run_step()  # position 8: a third block is wanted by both, none is free
    assert ints(plan.removed_rows) == [1]
    assert ints(plan.rows) == [0] and not plan.new_rows
    statistics = engine.scheduler.statistics()
    assert (statistics.num_preemptions, statistics.num_running, statistics.num_waiting) == (1, 1, 2)
    runs = [new.run for each in engine.planned for new in each.new_rows if new.request_id == "second"]
    engine.run()
    engine.check_all_served()
    again = [new for each in engine.planned for new in each.new_rows if new.request_id == "second"]
    assert len(again) == 2 and again[1].run not in runs, "a new run"
    assert len(again[1].token_ids) // 4 > again[1].num_prompt_tokens, "every known token travels"
    order = [new.request_id for each in engine.planned for new in each.new_rows]
    assert order.index("third") > [at for at, name in enumerate(order) if name == "second"][1], "head of waiting"


def test_a_preempted_request_comes_back_when_all_its_tokens_fit_and_not_chunk_by_chunk() -> None:
    engine = Engine(make_limits(num_blocks=4, block_size=4, long_prefill_token_threshold=4, prefix_caching=False))
    engine.admit(*(make_admit(f"r{n}", [n] * 7, max_tokens=6, ignore_eos=True) for n in (1, 2)))
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_preemptions == 1


def test_nothing_is_admitted_in_a_step_that_preempts_though_it_would_fit() -> None:
    """Two choices hold a block each of the same tokens; once one of them gives its own up, both fit by sharing."""
    engine = Engine(make_limits(pipeline_depth=1, num_blocks=4, block_size=4))
    admits = [make_admit("a", [1] * 8, choice=choice, max_tokens=4, ignore_eos=True) for choice in (0, 1)]
    engine.admit(*admits)
    (plan,) = engine.run_step()
    assert ints(plan.removed_rows) == [1] and not plan.new_rows
    (plan,) = engine.run_step()
    assert [new.choice for new in plan.new_rows] == [1] and ints(plan.starts) == [9, 8]
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_preemptions == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_one_shortage_preempts_one_victim_at_any_depth(depth: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth, num_blocks=6, block_size=4, prefix_caching=False))
    engine.admit(*(make_admit(f"r{n}", [n] * 7, max_tokens=5, ignore_eos=True) for n in (1, 2, 3)))
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_preemptions == 1


def test_a_preempted_request_keeps_the_cached_tokens_of_its_first_admission() -> None:
    engine = Engine(make_limits(num_blocks=5, block_size=4))
    engine.admit(*(make_admit(f"r{n}", [n] * 7, max_tokens=8, ignore_eos=True) for n in (1, 2)))
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_preemptions >= 1
    for client in engine.clients.values():
        assert client.finish is not None and client.finish.usage.cached_tokens == 0


# Refusal and ignoring -------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_at_once() -> None:
    engine = Engine(make_limits(max_num_seqs=1, max_queued_requests=2))
    for index in range(3):
        engine.admit(make_admit(f"r{index}", [1], max_tokens=9))
    assert engine.scheduler.step(0, [make_admit("one more", [1])]) is None
    (refused,) = engine.scheduler.collect().refused["tokenizer"]
    assert (refused.request_id, refused.choice, refused.attempt) == ("one more", 0, 1)
    assert (refused.status, refused.error_type, refused.code) == (429, "rate_limit_error", "queue_full")
    assert refused.retry_after_s is not None and refused.retry_after_s >= 1
    assert "2 requests" in refused.message and "max_queued_requests" in refused.message


def test_too_many_waiting_tokens_are_refused_but_an_empty_queue_takes_any_prompt() -> None:
    engine = Engine(make_limits(max_queued_tokens=10), is_attached=False)
    engine.admit(make_admit("large", [1] * 50))
    assert engine.scheduler.statistics().num_waiting_tokens == 50
    engine.scheduler.step(0, [make_admit("small", [1])])
    (refused,) = engine.scheduler.collect().refused["tokenizer"]
    assert refused.code == "queue_tokens_full" and "51 prompt tokens" in refused.message


def test_requests_for_which_a_row_is_free_are_not_queued() -> None:
    engine = Engine(make_limits(max_num_seqs=4, max_queued_requests=1))
    engine.admit(*(make_admit(f"r{index}", [1]) for index in range(6)))
    refused = [key[0] for key, client in engine.clients.items() if client.is_ended_here]
    assert refused == ["r5"]


def test_a_full_queue_does_not_refuse_the_preempted() -> None:
    engine = Engine(make_limits(max_num_seqs=2, max_queued_requests=1))
    engine.admit(*(make_admit(f"r{index}", [1], max_tokens=4) for index in range(3)))
    engine.lose_worker()
    assert engine.scheduler.statistics().num_waiting == 3
    engine.attach()
    engine.run()
    engine.check_all_served()


@pytest.mark.parametrize("prompt", [[1] * 9, [1] * 100])
def test_a_prompt_that_can_never_fit_is_ignored_at_once(prompt: list[int]) -> None:
    engine = Engine(make_limits(num_blocks=2, block_size=4), is_attached=False)
    engine.admit(make_admit("a", prompt))
    client = engine.clients["a", 0]
    assert client.finish is not None and client.finish.reason == "length"
    assert client.finish.usage == Usage(len(prompt), 0, 0)
    assert engine.scheduler.statistics().num_waiting == 0


def test_a_prompt_that_fills_the_pool_gets_one_token() -> None:
    engine = Engine(make_limits(num_blocks=2, block_size=4))
    engine.admit(make_admit("a", [1] * 8, ignore_eos=True))
    engine.run()
    assert len(engine.clients["a", 0].token_ids) == 1


# Ends -----------------------------------------------------------------------------------------------------------------


def prompt_that_ends() -> list[int]:
    """A prompt whose third output token is EOS, and none before it."""
    for seed in range(1, 5000):
        known = [seed]
        for _ in range(3):
            known.append(next_token(known, 0))
        if known[3] == EOS and EOS not in known[1:3]:
            return [seed]
    raise AssertionError("no such prompt")


def test_eos_is_part_of_the_output_and_told_as_stop() -> None:
    engine = Engine(make_limits())
    engine.admit(make_admit("a", prompt_that_ends(), max_tokens=3))
    engine.run()
    client = engine.clients["a", 0]
    assert client.token_ids[-1] == EOS and client.finish is not None
    assert (client.finish.reason, client.finish.stop_reason) == ("stop", None), "EOS is tested before length"
    assert client.finish.usage.completion_tokens == 3


def test_ignore_eos_goes_on() -> None:
    engine = Engine(make_limits())
    engine.admit(make_admit("a", prompt_that_ends(), max_tokens=5, ignore_eos=True))
    engine.run()
    client = engine.clients["a", 0]
    assert client.token_ids[2] == EOS and len(client.token_ids) == 5
    assert client.finish is not None and client.finish.reason == "length"


def test_the_models_length_ends_a_request() -> None:
    engine = Engine(make_limits(max_model_len=12))
    engine.admit(make_admit("a", [1] * 8, max_tokens=100, ignore_eos=True))
    engine.run()
    assert len(engine.clients["a", 0].token_ids) == 4


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_end_by_length_wastes_no_step(depth: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth))
    engine.admit(make_admit("a", [1], max_tokens=5, ignore_eos=True))
    engine.run()
    assert engine.scheduler.statistics().num_steps == 5


def test_a_row_that_ended_is_wasted_once_at_depth_2_and_its_result_dropped() -> None:
    engine = Engine(make_limits(pipeline_depth=2))
    engine.admit(make_admit("a", prompt_that_ends(), max_tokens=50))
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_steps == 4


def test_a_stop_ends_the_request_and_its_tokens_in_flight() -> None:
    engine = Engine(make_limits())
    engine.admit(make_admit("a", [1], max_tokens=50, ignore_eos=True))
    engine.run_step()
    engine.clients["a", 0].is_ended_here = True
    engine.pump(Stop("a", 0, 1, 0))
    engine.run()
    engine.check_all_served()


def test_an_abort_ends_every_choice() -> None:
    engine = Engine(make_limits(max_num_seqs=2))
    engine.admit(*(make_admit("a", [1], choice=choice, max_tokens=50, ignore_eos=True) for choice in range(3)))
    assert engine.scheduler.statistics().num_waiting == 1
    for client in engine.clients.values():
        client.is_ended_here = True
    engine.pump(Abort("a", 1, "client"))
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_finished == 3


def test_an_end_of_an_unknown_request_is_nothing() -> None:
    engine = Engine(make_limits())
    engine.pump(Abort("a", 1, "client"), Stop("a", 0, 1, 0))
    assert engine.scheduler.statistics().num_finished == 0


# The worker's life ----------------------------------------------------------------------------------------------------


def test_without_a_worker_nothing_is_planned() -> None:
    engine = Engine(make_limits(), is_attached=False)
    assert engine.admit(make_admit("a", [1])) == []
    assert not engine.scheduler.can_plan
    engine.attach()
    assert engine.planned[0].epoch == 1


def test_after_a_death_all_rows_are_named_in_full_in_their_order() -> None:
    engine = Engine(make_limits(block_size=4))
    engine.admit(*(make_admit(f"r{index}", [index + 1] * 9, max_tokens=9, ignore_eos=True) for index in range(3)))
    engine.run_step()
    engine.lose_worker()
    assert engine.scheduler.num_in_flight == 0
    engine.attach()
    plan = next(plan for plan in engine.planned if plan.epoch == 2)
    assert [new.request_id for new in plan.new_rows] == ["r0", "r1", "r2"]
    assert ints(plan.starts) == [0, 0, 0], "no K/V of the dead worker is found"
    assert ints(plan.removed_rows) == []
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_preemptions == 0, "a death is no shortage"


def test_a_result_of_an_older_epoch_is_dropped() -> None:
    engine = Engine(make_limits())
    engine.admit(make_admit("a", [1], max_tokens=4))
    engine.work()
    late = engine.results[0]
    engine.lose_worker()
    engine.attach()
    engine.pump(late)
    engine.run()
    engine.check_all_served()


def test_a_plan_that_only_removes_rows_is_not_sent() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(make_admit("a", [1], max_tokens=1))
    assert engine.run_step() == []
    (plan,) = engine.admit(make_admit("b", [2], max_tokens=1))
    assert ints(plan.removed_rows) == [0] and plan.new_rows[0].row == 0


def result_of(plan: StepPlan, **changes: object) -> StepResult:
    fields: dict[str, object] = dict(
        epoch=plan.epoch,
        step=plan.step,
        runs=plan.runs,
        positions=np.array([1], "<i4").tobytes(),
        token_ids=np.array([5], "<i4").tobytes(),
        start_ns=0,
        end_ns=0,
    )
    return StepResult(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 7}, "result of step 7, step 0 is the oldest in flight"),
        ({"positions": np.array([2], "<i4").tobytes()}, "position 2, 1 is next"),
        ({"positions": np.array([0], "<i4").tobytes()}, "position 0, 1 is next"),
        ({"token_ids": b""}, "1 runs, 1 positions, 0 tokens"),
        ({"num_sampled": np.array([0], "<i4").tobytes(), "token_ids": b""}, "has a row with 0 tokens"),
        ({"num_sampled": np.array([-1, 2], "<i4").tobytes()}, "1 runs, 1 positions, 1 tokens"),
        ({"num_sampled": np.array([2], "<i4").tobytes()}, "1 runs, 1 positions, 1 tokens"),
    ],
)
def test_a_result_that_does_not_fit_is_a_fault(changes: dict[str, object], message: str) -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    plan = scheduler.step(0, [WorkerAttached(1), make_admit("a", [1])])
    assert plan is not None
    with pytest.raises(ProtocolViolation, match=message):
        scheduler.step(0, [result_of(plan, **changes)])


def test_a_result_with_nothing_in_flight_is_a_fault() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    plan = scheduler.step(0, [WorkerAttached(1), make_admit("a", [1], max_tokens=1)])
    assert plan is not None
    assert scheduler.step(0, [result_of(plan)]) is None
    with pytest.raises(ProtocolViolation, match="no step is in flight"):
        scheduler.step(0, [result_of(plan)])


def test_missing_logprobs_are_a_fault() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    plan = scheduler.step(0, [WorkerAttached(1), make_admit("a", [1], logprobs=2)])
    assert plan is not None
    with pytest.raises(ProtocolViolation, match="asked for 2 log-probabilities"):
        scheduler.step(0, [result_of(plan)])


# Deltas, replay, limits -----------------------------------------------------------------------------------------------


def test_unsent_tokens_of_a_request_merge_into_one_delta() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(make_admit("a", [1], max_tokens=50, ignore_eos=True, logprobs=1))
    scheduler, worker = engine.scheduler, engine.worker
    assert worker is not None
    for _ in range(3):
        plan = scheduler.step(0, [worker.work(engine.plans.popleft(), 0)])
        engine.plans.append(msgspec.msgpack.encode(plan))
    message = scheduler.collect().deltas["tokenizer"]
    assert message.positions == [0] and len(message.token_ids[0]) == len(message.logprobs[0]) == 3
    assert scheduler.collect().deltas == {}


def test_a_takeover_sends_everything_again_to_the_new_tokenizer() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(make_admit("a", [1], max_tokens=50, ignore_eos=True))
    for _ in range(3):
        engine.run_step()
    engine.scheduler.step(0, [make_admit("a", [1], attempt=2, tokenizer="other", max_tokens=50)])
    message = engine.scheduler.collect().deltas["other"]
    assert (message.attempts, message.positions) == ([2], [0])
    assert message.token_ids == [engine.clients["a", 0].token_ids]


def test_an_older_or_repeated_attempt_is_dropped() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(make_admit("a", [1], attempt=2, max_tokens=50, ignore_eos=True))
    engine.run_step()
    engine.pump(make_admit("a", [1], attempt=2), make_admit("a", [1], attempt=1))
    engine.pump(Stop("a", 0, 1, 0), Abort("a", 1, "client"))
    engine.run()
    engine.check_all_served()


def test_the_same_events_give_the_same_bytes() -> None:
    def record() -> list[bytes]:
        engine = Engine(make_limits(num_blocks=9, block_size=4))
        engine.admit(*(make_admit(f"r{n}", [n] * 5, max_tokens=9) for n in range(1, 5)))
        engine.run_step()
        engine.lose_worker()
        engine.attach()
        engine.run()
        return [msgspec.msgpack.encode(plan) for plan in engine.planned]

    assert record() == record()


def test_events_survive_a_journal() -> None:
    events: list[Event] = [
        WorkerAttached(3),
        make_admit("a", [1]),
        Stop("a", 0, 1, 0),
        Abort("a", 1, "x"),
        WorkerGone(),
    ]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(events), type=list[Event]) == events


def test_a_plan_bound_defaults_to_the_larger_of_length_and_four_budgets() -> None:
    assert make_limits(max_model_len=100, max_num_batched_tokens=10).plan_tokens == 100 + 4 * 4096
    assert make_limits(max_model_len=100, max_num_batched_tokens=4121).plan_tokens == 16_484
    assert make_limits(max_model_len=100, max_num_batched_tokens=4122).plan_tokens == 16_488
    assert make_limits(max_plan_tokens=7).plan_tokens == 7


@pytest.mark.parametrize(("name", "value"), [("max_num_seqs", 0), ("num_blocks", 0), ("watermark", 1.0)])
def test_limits_that_make_no_sense_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        make_limits(**{name: value})


def test_states_after_preempted_are_finished() -> None:
    states = list(RequestState)
    finished = states[states.index(RequestState.PREEMPTED) + 1 :]
    reasons = {state.name: state.finish_reason for state in finished}
    assert reasons == {
        "STOPPED": "stop",
        "LENGTH_CAPPED": "length",
        "ABORTED": "abort",
        "IGNORED": "length",
        "ERROR": "error",
        "REPETITION": "repetition",
        "TIMEOUT": "timeout",
    }


def test_an_integrity_check_repairs_and_counts_a_leak() -> None:
    engine = Engine(make_limits(num_blocks=4))
    leaked = engine.scheduler._state.pool.allocate(1)
    assert engine.scheduler.check_integrity() == [Leak("block", leaked[0], None, None, 0, "", "")]
    assert engine.scheduler.statistics().num_leaks == 1
    assert engine.scheduler.statistics().num_free_blocks == 4


def test_the_largest_plan_fits_the_bytes_that_the_limits_imply() -> None:
    """New rows named as long as can be, with as many tokens and entries as may travel; then every row gets a block."""
    limits = make_limits(pipeline_depth=1, max_num_seqs=32, block_size=1, max_num_batched_tokens=320, max_model_len=64)
    engine = Engine(limits)
    names = [f"{index}".rjust(128, "x") for index in range(32)]
    bias = tuple((2**31 - index, 1e300) for index in range(504))
    changes = {"choice": 2**30, "seed": 2**64 - 1, "logit_bias": bias}
    engine.admit(*(make_admit(name, [index % 8 + 1] * 40, **changes) for index, name in enumerate(names)))
    assert len(engine.planned[0].new_rows) == 320 // 40 == (64 + 4 * 4096) // (40 + 4 * 504)
    engine.run()  # Engine.pump compares each plan with the slot's size
    engine.check_all_served()
    encoded = max(len(msgspec.msgpack.encode(plan)) for plan in engine.planned)
    assert board_bytes(limits) / 4 < encoded <= board_bytes(limits), "a bound, and not a wild one"
