"""Resumed requests, dead tokenizers, and what a refused client is told: rule by rule."""

from __future__ import annotations

import msgspec
import pytest

from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.requests import Abort, Usage
from callboard.scheduling.drain_rate import DrainRate
from callboard.scheduling.events import TokenizerGone, WorkerAttached
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_client import Client
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_model import EOS, next_token, truth
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits

NS_PER_S = 1_000_000_000


def known_output(prompt: list[int], count: int) -> list[int]:
    """The first output ids of a request that ignores EOS."""
    known = list(prompt)
    for _ in range(count):
        known.append(next_token(known, 0))
    return known[len(prompt) :]


# Resume ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_request_goes_on_behind_the_output_that_it_brings() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    admit = make_admit("a", [1, 2, 3], max_tokens=6, ignore_eos=True, logprobs=1)
    engine.admit(admit)
    for _ in range(4):
        engine.run_step()
    engine.lose_scheduler()
    engine.attach()
    (plan,) = engine.resume(("a", 0))
    (row,) = plan.new_rows
    assert (row.attempt, row.num_prompt_tokens, len(ints(row.token_ids))) == (2, 3, 7)
    assert (ints(plan.starts), ints(plan.num_tokens)) == ([0], [7]), "the next token is at position 7"
    engine.run()
    engine.check_all_served()
    finish = engine.clients["a", 0].finish
    assert finish is not None and finish.usage == Usage(3, 6, 0)
    assert engine.scheduler.statistics().num_steps == 2, "two tokens were missing"
    assert engine.scheduler.statistics().num_resumed == 1


def test_cached_tokens_of_a_resumed_request_are_tokens_of_its_prompt() -> None:
    engine = Engine(make_limits(pipeline_depth=1, block_size=2))
    first = make_admit("a", [1, 2, 3], max_tokens=8, ignore_eos=True)
    engine.admit(first)
    engine.run()
    output = truth(first, engine.limits)[0]
    engine.clients["b", 0] = Client(make_admit("b", [1, 2, 3], attempt=2, max_tokens=8, ignore_eos=True))
    engine.clients["b", 0].token_ids = output[:5]
    engine.admits["b", 0] = engine.clients["b", 0].admit
    (plan,) = engine.pump(msgspec.structs.replace(engine.admits["b", 0], output_token_ids=output[:5]))
    assert ints(plan.starts) == [6], "blocks of the output are found as well"
    engine.run()
    finish = engine.clients["b", 0].finish
    assert finish is not None and finish.usage == Usage(3, 8, 3)


@pytest.mark.parametrize(
    ("output", "changes", "reason"),
    [
        ([5, EOS], {}, "stop"),
        ([5, 6, 7], {"max_tokens": 3}, "length"),
        ([5, 6, EOS], {"max_tokens": 3}, "stop"),
        ([5, 6, EOS], {"max_tokens": 3, "ignore_eos": True}, "length"),
    ],
)
def test_a_resumed_request_that_is_complete_ends_at_once(
    output: list[int], changes: dict[str, object], reason: str
) -> None:
    scheduler = Scheduler(make_limits())
    admit = make_admit("a", [1, 2], attempt=2, output_token_ids=output, **changes)
    assert scheduler.step(0, [WorkerAttached(1), admit]) is None
    message = scheduler.collect().deltas["tokenizer"]
    assert (message.attempts, message.positions, message.token_ids) == ([2], [len(output)], [[]])
    assert (message.finishes[0].reason, message.finishes[0].usage) == (reason, Usage(2, len(output), 0))
    statistics = scheduler.statistics()
    assert (statistics.num_waiting, statistics.num_finished, statistics.num_resumed) == (0, 1, 1)


@pytest.mark.parametrize("num_known", [0, 2, 3])
def test_a_takeover_gets_what_it_does_not_have_and_the_run_goes_on(num_known: int) -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(make_admit("a", [1], max_tokens=50, ignore_eos=True, logprobs=1))
    for _ in range(3):
        engine.run_step()
    output = list(engine.clients["a", 0].token_ids)
    again = make_admit("a", [1], attempt=2, tokenizer="other", output_token_ids=output[:num_known], max_tokens=50)
    assert engine.scheduler.step(0, [again]) is None, "nothing is planned anew"
    deltas = engine.scheduler.collect().deltas
    if num_known == 3:
        assert deltas == {}
    else:
        message = deltas["other"]
        assert (message.attempts, message.positions, message.token_ids) == ([2], [num_known], [output[num_known:]])
        assert [entry.token_id for entry in message.logprobs[0]] == output[num_known:]


def test_logprobs_of_a_takeover_after_a_resume_are_those_of_its_tokens() -> None:
    prompt, output = [1], known_output([1], 6)
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(make_admit("a", prompt, max_tokens=50, ignore_eos=True, logprobs=1))
    for _ in range(3):
        engine.run_step()
    engine.lose_scheduler()
    engine.attach()
    engine.resume(("a", 0))
    for _ in range(3):
        engine.run_step()
    third = msgspec.structs.replace(engine.admits["a", 0], attempt=3, output_token_ids=output[:4])
    engine.scheduler.step(0, [third])
    message = engine.scheduler.collect().deltas["tokenizer"]
    assert (message.positions, message.token_ids) == ([4], [output[4:6]])
    assert [entry.token_id for entry in message.logprobs[0]] == output[4:6]


def test_a_takeover_drops_what_was_not_sent_to_the_tokenizer_before() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(make_admit("a", [1], max_tokens=2, ignore_eos=True))
    engine.blocked = {"tokenizer"}
    engine.run_step()
    engine.run_step()
    assert engine.scheduler.statistics().num_finished == 1, "its end is known here, and has not been sent"
    engine.resume(("a", 0), "other")
    engine.blocked = set()
    assert engine.scheduler.collect().deltas == {}
    engine.run()
    engine.check_all_served()


def test_a_resumed_request_is_not_refused_and_new_ones_are() -> None:
    engine = Engine(make_limits(max_num_seqs=1, max_queued_requests=0, max_queued_tokens=1))
    engine.admit(make_admit("a", [1], max_tokens=9, ignore_eos=True))
    engine.admit(make_admit("b", [1] * 9, attempt=2, output_token_ids=[5], max_tokens=3, ignore_eos=True))
    engine.admit(make_admit("c", [1]))
    assert not engine.clients["b", 0].is_ended_here and engine.clients["c", 0].is_ended_here
    assert engine.scheduler.statistics().num_waiting == 1
    assert engine.scheduler.statistics().num_queued_room == 0


@pytest.mark.parametrize(("attempt", "is_live"), [(1, True), (2, False), (3, False)])
def test_stop_and_abort_end_every_attempt_up_to_their_own(attempt: int, is_live: bool) -> None:
    for event in (Stop("a", 0, attempt, 0), Abort("a", attempt, "client")):
        scheduler = Scheduler(make_limits())
        scheduler.step(0, [WorkerAttached(1), make_admit("a", [1], attempt=2), event])
        assert (scheduler.statistics().num_finished == 0) == is_live


# A dead tokenizer -----------------------------------------------------------------------------------------------------


def two_tokenizers() -> Scheduler:
    """Two requests, one of each tokenizer, at time 100 s; grace is 10 s."""
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    scheduler.step(100 * NS_PER_S, [WorkerAttached(1), make_admit("a", [1]), make_admit("b", [1], tokenizer="other")])
    assert scheduler.next_deadline_ns() is None
    scheduler.step(101 * NS_PER_S, [TokenizerGone("tokenizer")])
    return scheduler


def test_an_unclaimed_orphan_is_ended_at_the_end_of_its_grace() -> None:
    scheduler = two_tokenizers()
    assert scheduler.next_deadline_ns() == 111 * NS_PER_S
    scheduler.step(111 * NS_PER_S - 1, [])
    assert scheduler.statistics().num_orphans_ended == 0
    scheduler.step(111 * NS_PER_S, [])
    statistics = scheduler.statistics()
    assert (statistics.num_orphans_ended, statistics.num_running) == (1, 1)
    assert scheduler.next_deadline_ns() is None and scheduler.collect().deltas == {}
    scheduler.check_integrity()


def test_a_claim_in_the_last_call_wins_and_an_older_attempt_is_none() -> None:
    scheduler = two_tokenizers()
    scheduler.step(102 * NS_PER_S, [make_admit("a", [1])])
    assert scheduler.next_deadline_ns() is not None
    scheduler.step(111 * NS_PER_S, [make_admit("a", [1], attempt=2)])
    assert scheduler.next_deadline_ns() is None
    assert scheduler.statistics().num_running == 2


def test_a_request_orphaned_twice_has_a_grace_of_its_own() -> None:
    scheduler = two_tokenizers()
    scheduler.step(105 * NS_PER_S, [TokenizerGone("other")])
    scheduler.step(106 * NS_PER_S, [make_admit("a", [1], attempt=2), TokenizerGone("tokenizer")])
    scheduler.step(115 * NS_PER_S, [])
    assert scheduler.statistics().num_orphans_ended == 1
    assert scheduler.next_deadline_ns() == 116 * NS_PER_S
    scheduler.check_integrity()


def test_an_orphan_that_is_aborted_or_ends_has_no_deadline() -> None:
    scheduler = two_tokenizers()
    scheduler.step(102 * NS_PER_S, [Abort("a", 1, "client")])
    assert scheduler.next_deadline_ns() is None


def test_nothing_is_said_to_the_successor_of_a_dead_tokenizer_until_a_resume() -> None:
    engine = Engine(make_limits(pipeline_depth=1, resume_grace_s=1.0))
    engine.admit(
        make_admit("a", [1], max_tokens=5, ignore_eos=True), make_admit("b", [2], max_tokens=2, ignore_eos=True)
    )
    engine.blocked = {"tokenizer"}
    engine.run_step()
    engine.blocked = set()
    engine.lose_tokenizer("tokenizer")
    engine.run_step()
    assert engine.scheduler.statistics().num_finished == 1, "b ended, and nobody has heard of it"
    engine.resume(("a", 0))
    engine.resume(("b", 0))
    engine.run()
    engine.check_all_served()


# Retry-After ----------------------------------------------------------------------------------------------------------


def test_the_drain_rate_counts_only_what_happens_while_there_is_a_queue() -> None:
    rate = DrainRate()
    assert rate.retry_after_s(1) == 1, "nothing is known yet"
    for second in (0, 1800, 3600):
        rate.advance(second * NS_PER_S, False)
        rate.leave()
    for second in range(1, 10):
        rate.advance((3600 + second) * NS_PER_S, True)
        if second % 3 == 0:
            rate.leave()
    assert [rate.retry_after_s(n) for n in (1, 2, 10, 30)] == [3, 6, 30, 60], "3 in 9 s, at most a minute is told"


def test_the_drain_rate_forgets_what_is_older_than_two_periods() -> None:
    rate = DrainRate()
    rate.advance(0, False)
    for tenth in range(1, 100):
        rate.advance(tenth * NS_PER_S // 10, True)
        rate.leave()
    rate.advance(10 * NS_PER_S, True)
    assert rate.retry_after_s(99) == 10
    rate.advance(20 * NS_PER_S, True)
    assert rate.retry_after_s(1) == 10, "none left in the last 10 s"
    rate.leave()
    rate.advance(30 * NS_PER_S, True)
    assert rate.retry_after_s(1) == 10, "one left in the last 10 s"


def test_a_refused_client_is_told_when_the_queue_will_have_room() -> None:
    """One row; a request of 4 tokens takes 4 s, so one leaves the queue every 4 s."""
    engine = Engine(make_limits(max_num_seqs=1, max_queued_requests=3, pipeline_depth=1))
    engine.admit(*(make_admit(f"r{n}", [n], max_tokens=4, ignore_eos=True) for n in range(1, 5)))
    assert engine.scheduler.statistics().num_queued_room == 0
    for _ in range(9):
        engine.now_ns += NS_PER_S
        engine.run_step()
    statistics = engine.scheduler.statistics()
    assert (statistics.num_waiting, statistics.num_queued_room, statistics.retry_after_s) == (1, 2, 5)
    late = [make_admit(f"late{n}", [n]) for n in range(1, 4)]
    engine.scheduler.step(engine.tick(), late)
    (refused,) = engine.scheduler.collect().refused["tokenizer"]
    assert (refused.request_id, refused.retry_after_s) == ("late3", 5), "2 left in 9 s"


def test_retry_after_of_a_queue_full_of_tokens_counts_the_requests_that_hold_them() -> None:
    scheduler = Scheduler(make_limits(max_num_seqs=1, max_queued_requests=100, max_queued_tokens=100))
    admits: list[Admit] = [make_admit(f"r{n}", [1] * 10) for n in range(10)]
    scheduler.step(0, [WorkerAttached(1), make_admit("first", [1]), *admits[:1]])
    scheduler.step(2 * NS_PER_S, admits[1:])
    scheduler.step(2 * NS_PER_S, [make_admit("late", [1] * 35)])
    (refused,) = scheduler.collect().refused["tokenizer"]
    assert refused.code == "queue_tokens_full"
    assert refused.retry_after_s == 8, "35 tokens are in 4 requests, and none has left in 2 s"
    assert scheduler.statistics().num_queued_room == 0
