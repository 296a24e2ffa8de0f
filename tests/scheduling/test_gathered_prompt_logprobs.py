"""Log-probabilities of prompts: gathered over chunks, once an attempt, whatever happens between."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from callboard.errors import ProtocolViolation
from callboard.mailbox.messages.admission import TokenDeltas
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import PromptLogprobs, StepPlan, StepResult
from callboard.scheduling import deltas
from callboard.scheduling.events import WorkerAttached
from callboard.scheduling.request import Request
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_model import prompt_entries
from callboard.tests.scheduling.fake_worker import ints, make_admit, make_limits

EMPTY = TokenDeltas([], [], [], [], [], [])
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 1, 3]


def wants(name: str = "a", prompt: list[int] = PROMPT, **changes: object) -> object:
    return make_admit(name, prompt, **{"max_tokens": 5, "ignore_eos": True, "prompt_logprobs": 2} | changes)


# The clients of an Engine check that the right entries come with the first token of an attempt, and no others.


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 4, 9, 10, 64])
def test_chunks_are_put_together(chunk: int, depth: int) -> None:
    engine = Engine(make_limits(pipeline_depth=depth, long_prefill_token_threshold=chunk))
    engine.admit(wants("a"), wants("b", [9 - t for t in PROMPT], prompt_logprobs=0), make_admit("c", PROMPT))
    engine.run()
    engine.check_all_served()


def test_a_prompt_of_one_token_has_none_and_is_told_so() -> None:
    engine = Engine(make_limits())
    engine.admit(wants("a", [5]))
    engine.run()
    engine.check_all_served()
    assert engine.clients["a", 0].finish is not None


def test_each_position_is_computed_though_the_prefix_is_cached_and_its_blocks_serve_others() -> None:
    engine = Engine(make_limits(block_size=2, pipeline_depth=1))
    engine.admit(make_admit("warm", PROMPT, max_tokens=1))
    engine.run()
    (plan,) = engine.admit(wants("asks"))
    assert (ints(plan.starts), ints(plan.num_tokens)) == ([0], [10])
    engine.run()
    queries = engine.scheduler.statistics().prefix_cache_queries
    assert queries == 10, "nothing was looked up for it"
    engine.lose_worker()
    engine.attach()
    engine.admit(wants("asks again", max_tokens=1))
    engine.run()
    (plan,) = engine.admit(make_admit("late", PROMPT, max_tokens=1))
    assert ints(plan.starts) == [8], "what it computed is found"
    engine.run()
    engine.check_all_served()


def test_a_preempted_request_computes_its_prompt_again_and_drops_what_it_knew() -> None:
    """Preempted between two chunks of its prompt, with the first one's piece known and the second's in flight."""
    engine = Engine(make_limits(num_blocks=6, block_size=4, pipeline_depth=2, max_num_batched_tokens=5))
    engine.admit(make_admit("first", [1] * 4, max_tokens=12, ignore_eos=True), wants("second", [2] * 15, max_tokens=3))
    while engine.scheduler.statistics().num_preemptions == 0:
        engine.run_step()
    request = engine.scheduler._state.find("second", 0)
    assert request is not None and request.prompt_logprobs is not None and not request.prompt_logprobs.num_known
    engine.run()
    engine.check_all_served()


def test_a_request_preempted_after_its_first_token_has_told_them_and_uses_the_prefix_cache() -> None:
    engine = Engine(make_limits(num_blocks=6, block_size=4, pipeline_depth=1))
    engine.admit(make_admit("first", [1] * 7, max_tokens=9, ignore_eos=True), wants("second", [2] * 9, max_tokens=9))
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_preemptions == 1
    again = [new for plan in engine.planned for new in plan.new_rows if new.request_id == "second"]
    assert [new.sampling.prompt_logprobs for new in again] == [2, None]
    (plan,) = [plan for plan in engine.planned if again[1] in plan.new_rows]
    assert ints(plan.starts)[-1] > 0


def test_a_step_that_failed_is_run_again_and_the_pieces_of_its_neighbours_count_once() -> None:
    engine = Engine(make_limits(pipeline_depth=2, max_num_batched_tokens=8, long_prefill_token_threshold=4))
    engine.admit(wants("a"), wants("b", PROMPT[::-1]))
    engine.run_step()
    assert engine.worker is not None
    engine.worker.num_to_fail = 1
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_failed_steps == 1


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_deaths_of_worker_tokenizer_and_scheduler_give_the_same_answer(num_steps: int) -> None:
    for lose in (Engine.lose_worker, lambda engine: engine.lose_tokenizer("tokenizer"), Engine.lose_scheduler):
        engine = Engine(make_limits(pipeline_depth=1, long_prefill_token_threshold=4, block_size=2))
        engine.admit(wants("a", min_tokens=2, stop_token_ids=(3, 5)), wants("b", PROMPT[::-1], min_tokens=1))
        for _ in range(num_steps):
            engine.run_step()
        lose(engine)
        for key in [key for key, client in engine.clients.items() if client.is_orphan]:
            engine.resume(key)
        if engine.worker is None:
            engine.attach()
        engine.run()
        engine.check_all_served()


def test_a_resumed_request_with_output_brought_them_before_and_finds_its_prefix() -> None:
    engine = Engine(make_limits(pipeline_depth=1, block_size=2))
    engine.admit(make_admit("warm", PROMPT, max_tokens=1))
    engine.run()
    engine.admit(wants("a"))
    engine.run_step()
    engine.lose_scheduler()
    engine.attach()
    engine.admit(make_admit("warm again", PROMPT, max_tokens=1))
    engine.run()
    (plan,) = engine.resume(("a", 0))
    assert plan.new_rows[0].sampling.prompt_logprobs is None and ints(plan.starts) == [10]
    engine.run()
    engine.check_all_served()


def test_a_takeover_that_has_nothing_begins_again_for_they_are_not_kept() -> None:
    engine = Engine(make_limits(pipeline_depth=1, block_size=2))
    engine.admit(wants("a", max_tokens=9, logprobs=1))
    for _ in range(4):
        engine.run_step()
    request = engine.scheduler._state.find("a", 0)
    assert request is not None and request.prompt_logprobs is None, "sent, and not kept"
    engine.lose_tokenizer("tokenizer")
    engine.resume(("a", 0), "other", 0)
    assert engine.scheduler._state.find("a", 0) is request and request.num_output_tokens == 0
    engine.run()
    engine.check_all_served()


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_takeover_that_has_the_first_token_goes_on(num_tokens: int) -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(wants("a", max_tokens=9))
    for _ in range(4):
        engine.run_step()
    engine.resume(("a", 0), "other", num_tokens)
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_steps == 9, "nothing was computed twice"


def test_a_takeover_before_the_first_token_loses_nothing() -> None:
    engine = Engine(make_limits(pipeline_depth=1, long_prefill_token_threshold=4))
    engine.admit(wants("a", max_tokens=2))
    engine.run_step()
    engine.lose_tokenizer("tokenizer")
    engine.resume(("a", 0), "other", 0)
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.statistics().num_steps == 4


def test_they_stay_with_the_unsent_first_token_while_later_ones_merge_into_it() -> None:
    engine = Engine(make_limits(pipeline_depth=1))
    engine.admit(wants("a"))
    engine.blocked = {"tokenizer"}
    for _ in range(3):
        engine.run_step()
    engine.blocked = set()
    message: TokenDeltas = engine.scheduler.collect().deltas["tokenizer"]
    assert (message.positions, len(message.token_ids[0])) == ([0], 3)
    assert message.prompt_logprobs == {0: prompt_entries(PROMPT, 2)}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=TokenDeltas) == message
    engine.clients["a", 0].receive(message, 0)
    engine.run()
    engine.check_all_served()


@pytest.mark.parametrize(("most", "rows"), [(100_000, [3, 0]), (140, [2, 1]), (126, [2, 1]), (70, [1, 1]), (1, [1, 1])])
def test_what_waits_for_a_tokenizer_is_sent_in_messages_of_bounded_size(
    most: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 3 requests has 9 entries of 3 + 2 * 2 numbers; one without any is in no one's way."""
    monkeypatch.setattr(deltas, "MAX_PROMPT_VALUES", most)
    engine = Engine(make_limits(pipeline_depth=1))
    engine.blocked = {"tokenizer"}
    engine.admit(*(wants(f"r{n}", [n, *PROMPT[1:]]) for n in (1, 2, 3)), make_admit("plain", [1]))
    for _ in range(2):
        engine.run_step()
    first, second = engine.scheduler.collect(), engine.scheduler.collect()
    assert len(first.deltas["tokenizer"].request_ids) == rows[0] + 1
    assert [len(message.deltas.get("tokenizer", EMPTY).prompt_logprobs) for message in (first, second)] == rows
    assert (first.has_more, second.has_more) == (rows[0] < 3, sum(rows) < 3)
    for outgoing in (first, second):
        engine._deliver(outgoing)
    engine.blocked = set()
    engine.pump()
    engine.run()
    engine.check_all_served()


# Results that do not fit ----------------------------------------------------------------------------------------------


def pieces(**changes: object) -> PromptLogprobs:
    """Of the 3 positions behind the first token of a prompt of 4, with 2 alternatives each, for run 1."""
    fields: dict[str, object] = dict(runs=[1], starts=[1], counts=[3], logprobs=[0.0] * 3, ranks=[1] * 3)
    fields |= dict(top_ids=[1] * 6, top_logprobs=[0.0] * 6) | changes
    types = {"runs": "<i8", "logprobs": "<f4", "top_logprobs": "<f4"}
    return PromptLogprobs(**{name: np.array(value, types.get(name, "<i4")).tobytes() for name, value in fields.items()})


def result_of(plan: StepPlan, found: PromptLogprobs | None) -> StepResult:
    position, token = np.array([4], "<i4").tobytes(), np.array([5], "<i4").tobytes()
    return StepResult(plan.epoch, plan.step, plan.runs, position, token, 0, 0, prompt_logprobs=found)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "a token and 0 of 3 prompt log-probabilities"),
        (pieces(counts=[2], logprobs=[0.0] * 2, ranks=[1] * 2, top_ids=[1] * 4, top_logprobs=[0.0] * 4), "2 of 3"),
        (pieces(starts=[2]), "positions 2 to 4, 1 is next and 3 is the last"),
        (pieces(starts=[0]), "positions 0 to 2, 1 is next"),
        (pieces(counts=[4]), "step 0 do not match its 1 pieces"),
        (pieces(counts=[-1]), "do not match"),
        (pieces(starts=[]), "do not match"),
        (pieces(ranks=[1]), "do not match"),
        (pieces(top_logprobs=[0.0] * 3), "do not match"),
        (pieces(top_ids=[1] * 4, top_logprobs=[0.0] * 4), "do not match"),
        (pieces(top_ids=[1] * 3, top_logprobs=[0.0] * 3), "asked for 2 prompt log-probabilities, it got 1"),
    ],
)
def test_what_does_not_fit_is_a_fault(found: PromptLogprobs | None, message: str) -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=1))
    plan = scheduler.step(0, [WorkerAttached(1), wants("a", [1, 2, 3, 4])])
    assert plan is not None
    with pytest.raises(ProtocolViolation, match=message):
        scheduler.step(0, [result_of(plan, found)])


def test_what_nobody_asked_for_is_a_fault_and_what_comes_too_late_is_dropped() -> None:
    for ends_first in (False, True):
        scheduler = Scheduler(make_limits(pipeline_depth=1))
        plan = scheduler.step(0, [WorkerAttached(1), make_admit("a", [1, 2, 3, 4])])
        assert plan is not None
        if ends_first:
            scheduler.step(0, [Abort("a", 1, "client")])
            assert scheduler.step(0, [result_of(plan, pieces())]) is None
        else:
            with pytest.raises(ProtocolViolation, match="gathers no prompt log-probabilities"):
                scheduler.step(0, [result_of(plan, pieces())])


# The checks can fail --------------------------------------------------------------------------------------------------


def keeps_what_a_preempted_request_knew(patch: pytest.MonkeyPatch) -> None:
    leave = Request.leave

    def faulty(self: Request) -> None:
        gathered = self.prompt_logprobs
        leave(self)
        self.prompt_logprobs = gathered

    patch.setattr(Request, "leave", faulty)


def goes_on_without_them(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Request, "has_lost_prompt_logprobs", False)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (
            keeps_what_a_preempted_request_knew,
            test_a_step_that_failed_is_run_again_and_the_pieces_of_its_neighbours_count_once,
        ),
        (goes_on_without_them, test_a_takeover_that_has_nothing_begins_again_for_they_are_not_kept),
    ],
)
def test_a_planted_fault_is_found(plant: object, test: object, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)  # type: ignore[operator]
    with pytest.raises((AssertionError, ProtocolViolation)):
        test()  # type: ignore[operator]
