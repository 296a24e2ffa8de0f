"""When a request ends: each end of the order alone, two at once, and the guard in front of them."""

from __future__ import annotations

import pytest

from callboard.mailbox.messages.requests import Usage
from callboard.mailbox.messages.sampling import RepetitionDetection
from callboard.scheduling.events import WorkerAttached
from callboard.scheduling.request import Request, RequestState
from callboard.scheduling.scheduler import Scheduler
from callboard.scheduling.stop import Ending, ending_of
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_model import EOS, next_token, true_end
from callboard.tests.scheduling.fake_worker import make_admit, make_limits

TWICE = RepetitionDetection(max_pattern_size=2)
EOS_END = Ending(RequestState.STOPPED)
LENGTH_END = Ending(RequestState.LENGTH_CAPPED)
REPETITION_END = Ending(RequestState.REPETITION)


def stop_end(token_id: int) -> Ending:
    return Ending(RequestState.STOPPED, token_id)


CASES: list[tuple[list[int], dict[str, object], Ending | None]] = [
    ([5], {}, None),
    ([5, EOS], {}, EOS_END),
    ([5, EOS], {"ignore_eos": True}, None),
    ([5, 6], {"stop_token_ids": (6, 7)}, stop_end(6)),
    ([6, 5], {"stop_token_ids": (6, 7)}, None),
    ([5, 6, 7], {"max_tokens": 3}, LENGTH_END),
    ([5, 6, 7, 8], {"max_tokens": 100, "max_model_len": 6}, LENGTH_END),
    ([3, 5, 6, 5, 6], {"repetition_detection": TWICE}, REPETITION_END),
    ([5, 6, 5], {"repetition_detection": TWICE}, None),
    # two at once, in the order of the tests
    ([EOS], {"stop_token_ids": (EOS,), "max_tokens": 1}, EOS_END),
    ([EOS], {"stop_token_ids": (EOS,), "ignore_eos": True, "max_tokens": 1}, stop_end(EOS)),
    ([5, 5], {"stop_token_ids": (5,), "max_tokens": 2, "repetition_detection": TWICE}, stop_end(5)),
    ([5, 5], {"max_tokens": 2, "repetition_detection": TWICE}, LENGTH_END),
    # the guard
    ([5, EOS], {"min_tokens": 3}, None),
    ([5, EOS], {"min_tokens": 2}, EOS_END),
    ([5, 6], {"min_tokens": 3, "stop_token_ids": (6,)}, None),
    ([5, 6], {"min_tokens": 2, "stop_token_ids": (6,)}, stop_end(6)),
    ([5, 5], {"min_tokens": 3, "repetition_detection": TWICE}, None),
    ([5, 6, 7, 8], {"min_tokens": 50, "max_tokens": 100, "max_model_len": 6}, LENGTH_END),
]


@pytest.mark.parametrize(("output", "changes", "ending"), CASES)
def test_the_end_after_the_last_token(output: list[int], changes: dict[str, object], ending: Ending | None) -> None:
    limits = make_limits(max_model_len=changes.get("max_model_len", 1000))
    sampling = {name: value for name, value in changes.items() if name != "max_model_len"}
    request = Request(make_admit("a", [5, 5], **sampling), limits)
    request.token_ids.extend(output)
    assert ending_of(request) == ending


@pytest.mark.parametrize(("output", "changes", "ending"), [case for case in CASES if case[2] is not None])
def test_a_resumed_request_that_is_complete_is_told_the_same_end(
    output: list[int], changes: dict[str, object], ending: Ending
) -> None:
    scheduler = Scheduler(make_limits(max_model_len=changes.get("max_model_len", 1000)))
    sampling = {name: value for name, value in changes.items() if name != "max_model_len"}
    admit = make_admit("a", [5, 5], attempt=2, output_token_ids=output, **sampling)
    assert scheduler.step(0, [WorkerAttached(1), admit]) is None
    finish = scheduler.collect().deltas["tokenizer"].finishes[0]
    assert (finish.reason, finish.stop_reason) == (ending.state.finish_reason, ending.stop_reason)
    assert finish.usage == Usage(2, len(output), 0)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_stop_token_is_the_last_and_named(depth: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth))
    third = next_token([1, *true_end(make_admit("", [1], max_tokens=2, ignore_eos=True), engine.limits)[0]], 0)
    admit = make_admit("a", [1], max_tokens=50, ignore_eos=True, stop_token_ids=(third,))
    engine.admit(admit)
    engine.run()
    engine.check_all_served()
    client = engine.clients["a", 0]
    assert client.finish is not None
    assert (client.finish.reason, client.finish.stop_reason, client.token_ids[-1]) == ("stop", third, third)
    assert third not in client.token_ids[:-1] and len(client.token_ids) <= 3


def test_min_tokens_counts_the_output_of_all_attempts() -> None:
    """What may end the request is held off for 6 tokens in all, though each attempt brings some of them anew."""
    ends = (2, 4, 6)
    admit = make_admit("a", [1, 2, 3], max_tokens=30, min_tokens=6, stop_token_ids=ends)
    undisturbed = Engine(make_limits(pipeline_depth=1))
    undisturbed.admit(admit)
    undisturbed.run()
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(admit)
    for _ in range(2):
        for _ in range(2):
            engine.run_step()
        engine.lose_scheduler()
        engine.attach()
        engine.resume(("a", 0))
    engine.run()
    for each in (undisturbed, engine):
        each.check_all_served()
        output = each.clients["a", 0].token_ids
        assert len(output) >= 7 and not set(output[:6]) & {EOS, *ends}
    assert engine.clients["a", 0].token_ids == undisturbed.clients["a", 0].token_ids


@pytest.mark.parametrize(
    "detection", [RepetitionDetection(1), RepetitionDetection(3, 2, 2), RepetitionDetection(8, 1, 3)]
)
def test_an_output_that_repeats_itself_ends_as_repetition(detection: RepetitionDetection) -> None:
    """Of 40 prompts: each output is cut at its first repetition, wherever that is."""
    engine = Engine(make_limits())
    engine.admit(
        *(
            make_admit(f"r{n}", [n], max_tokens=40, ignore_eos=True, repetition_detection=detection)
            for n in range(1, 41)
        )
    )
    engine.run()
    engine.check_all_served()
    reasons = [client.finish.reason for client in engine.clients.values() if client.finish is not None]
    assert reasons.count("repetition") >= 1
