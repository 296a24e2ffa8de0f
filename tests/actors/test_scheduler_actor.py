"""The shell around the scheduler: what it publishes and sends, in which order, over which board."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from callboard.actors.faults import Faults
from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.errors import StaleEpoch
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.admission import Admit, SchedulerToTokenizer, TokenizerToScheduler
from callboard.mailbox.messages.requests import Explain, Explanation, Refused
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.scheduler import Scheduler
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.shm_queue import Phase
from callboard.shm_queue.progress import LINE_WORDS, ProgressLine
from callboard.tests.actors.delivery_worker import CallBoard, ResultBoard
from callboard.tests.scheduling.fake_model import truth
from callboard.tests.scheduling.fake_worker import FakeWorker, make_admit, make_limits


class Rig:
    def __init__(self, capacity: int = 8, **limits: Any) -> None:
        self.limits = make_limits(**limits)
        self.faults = Faults()
        self.to_tokenizer: Inbox[Any] = Inbox(SchedulerToTokenizer, capacity, 1 << 20)
        self.line = ProgressLine(np.zeros(LINE_WORDS, np.uint64))
        self.actor = SchedulerActor(
            "scheduler",
            Inbox(TokenizerToScheduler, 8, 1 << 20),
            {"tokenizer": Sender(LocalOutbox(self.to_tokenizer), self.faults)},
            Scheduler(self.limits),
            self.line,
            self.faults,
        )
        self.admits: dict[tuple[str, int], Admit] = {}
        self.epoch = 0

    def admit(self, *admits: Admit) -> None:
        for admit in admits:
            self.admits[admit.request_id, 0] = admit
            self.actor.handle(admit)
        self.actor.flush()

    def attach(self) -> tuple[CallBoard, ResultBoard]:
        self.epoch += 1
        self.worker = FakeWorker(self.limits, self.admits, self.epoch)
        self.calls, self.results = CallBoard(self.limits.pipeline_depth), ResultBoard()
        self.actor.attach(self.epoch, self.calls, self.results)  # type: ignore[arg-type]
        return self.calls, self.results

    async def step(self) -> None:
        """The worker runs a plan and the actor hears of it."""
        self.results.publish(self.worker.work(self.calls.plans.popleft(), 0))
        while self.results.results:
            await asyncio.sleep(0)

    def received(self) -> list[int]:
        return [i for message in self.to_tokenizer.receive_all_nowait() for ids in message.token_ids for i in ids]


async def test_without_a_worker_nothing_is_published_and_with_one_the_pipeline_is_filled() -> None:
    rig = Rig(pipeline_depth=2)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True))
    calls, _ = rig.attach()
    plans = [msgspec.msgpack.decode(plan, type=StepPlan) for plan in calls.plans]
    assert [(plan.epoch, plan.step) for plan in plans] == [(1, 0), (1, 1)]
    statistics = rig.line.read_statistics(SchedulerStatistics)
    assert (statistics.num_running, rig.line.phase) == (1, Phase.SERVING)
    rig.actor.close()


async def test_the_next_plan_is_published_before_the_tokens_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(pipeline_depth=1)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True))
    calls, _ = rig.attach()
    order: list[str] = []
    publish, post = calls.publish_nowait, Sender.post
    monkeypatch.setattr(calls, "publish_nowait", lambda record: (order.append("plan"), publish(record)))
    monkeypatch.setattr(Sender, "post", lambda self, message: (order.append("tokens"), post(self, message)))
    await rig.step()
    assert order == ["plan", "tokens"]
    rig.actor.close()


async def test_tokens_for_a_full_tokenizer_merge_and_none_is_lost() -> None:
    rig = Rig(capacity=1, pipeline_depth=2)
    admit = make_admit("r", [1, 2], ignore_eos=True, max_tokens=9)
    rig.admit(admit)
    rig.attach()
    for _ in range(9):
        await rig.step()
    assert len(rig.calls.plans) == 0, "a tokenizer that takes nothing does not hold the worker up"
    messages = [await rig.to_tokenizer.receive() for _ in range(3)]
    assert [len(message.token_ids[0]) for message in messages] == [1, 1, 7]
    assert [i for message in messages for i in message.token_ids[0]] == truth(admit, rig.limits)[0]
    assert messages[2].finishes[0].reason == "length" and messages[2].positions == [2]
    rig.actor.close()


async def test_a_worker_that_goes_is_forgotten_with_its_results_and_the_next_one_goes_on() -> None:
    rig = Rig(pipeline_depth=2)
    admit = make_admit("r", [1, 2], ignore_eos=True, max_tokens=6)
    rig.admit(admit)
    calls, results = rig.attach()
    await rig.step()
    results.publish(rig.worker.work(calls.plans.popleft(), 0))  # nobody has read this one
    rig.actor.worker_gone()
    rig.actor.worker_gone()
    assert results.is_detached
    rig.attach()
    while rig.calls.plans:
        await rig.step()
    assert rig.received() == truth(admit, rig.limits)[0]
    rig.actor.close()


async def test_a_new_worker_without_word_of_the_old_ones_end_replaces_it() -> None:
    rig = Rig()
    admit = make_admit("r", [1, 2], ignore_eos=True, max_tokens=4)
    rig.admit(admit)
    _, old = rig.attach()
    await rig.step()
    rig.attach()
    assert old.is_detached
    while rig.calls.plans:
        await rig.step()
    assert rig.received() == truth(admit, rig.limits)[0]
    rig.actor.close()


async def test_a_result_of_another_epoch_ends_the_actor() -> None:
    rig = Rig()
    rig.admit(make_admit("r", [1, 2]))
    calls, results = rig.attach()
    results.publish(msgspec.structs.replace(rig.worker.work(calls.plans.popleft(), 0), epoch=7))
    with pytest.raises(StaleEpoch):
        await rig.faults.run(asyncio.sleep(600))
    rig.actor.close()


async def test_refusals_are_sent_although_tokens_have_to_wait() -> None:
    rig = Rig(capacity=1, max_num_seqs=1, max_queued_requests=0, max_num_batched_tokens=64)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True))
    rig.attach()
    for _ in range(3):
        await rig.step()
    rig.admit(make_admit("late", [1]), make_admit("later", [1]))
    messages = [await rig.to_tokenizer.receive() for _ in range(4)]
    refused = [message.request_id for message in messages if isinstance(message, Refused)]
    assert refused == ["late", "later"]
    rig.actor.close()


async def test_a_leaked_block_is_named_given_back_and_counted_once_the_engine_is_idle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("callboard.actors.scheduler._IDLE_CHECK_AFTER_S", 0.0)
    rig = Rig(pipeline_depth=1)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True, max_tokens=1))
    rig.attach()
    (block,) = rig.actor._scheduler._state.pool.allocate(1)
    await rig.step()
    while (statistics := rig.line.read_statistics(SchedulerStatistics)).num_leaks == 0:
        await asyncio.sleep(0)
    assert (statistics.num_leaks, statistics.num_free_blocks) == (1, rig.limits.num_blocks)
    log = capsys.readouterr().err
    assert "scheduler.leaked num_blocks=1 num_units=1" in log
    assert f"scheduler.leak kind=block unit={block} step=0" in log
    rig.actor.close()


async def test_the_check_of_an_idle_engine_waits_and_a_new_request_calls_it_off() -> None:
    rig = Rig(pipeline_depth=1)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True, max_tokens=1))
    rig.attach()
    assert rig.actor._idle_check is None
    await rig.step()
    check = rig.actor._idle_check
    assert check is not None and not check.cancelled()
    rig.admit(make_admit("s", [1, 2], ignore_eos=True, max_tokens=1))
    assert check.cancelled() and rig.actor._idle_check is None
    rig.actor.close()


async def test_a_step_that_failed_is_logged_and_the_request_alone_in_it_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig = Rig(pipeline_depth=1)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True))
    rig.attach()
    rig.worker.raises["r", 0] = 3
    for _ in range(3):
        await rig.step()
    messages = rig.to_tokenizer.receive_all_nowait()
    (finish,) = [finish for message in messages for finish in message.finishes.values()]
    assert (finish.reason, finish.usage.completion_tokens) == ("error", 2)
    assert "scheduler.step_failed step=2 error='RuntimeError: a planted fault'" in capsys.readouterr().err
    assert rig.line.read_statistics(SchedulerStatistics).num_failed_steps == 1
    rig.actor.close()


async def test_void_results_and_the_fresh_plan_behind_them_pass_the_boards() -> None:
    rig = Rig(pipeline_depth=3)
    admits = [make_admit(name, [1, 2], ignore_eos=True, max_tokens=4) for name in ("r", "s")]
    rig.admit(*admits)
    rig.attach()
    rig.worker.num_to_fail = 1
    while rig.calls.plans:
        await rig.step()
    messages = rig.to_tokenizer.receive_all_nowait()
    tokens: dict[str, list[int]] = {"r": [], "s": []}
    for message in messages:
        for request_id, ids in zip(message.request_ids, message.token_ids, strict=True):
            tokens[request_id] += ids
    assert tokens == {admit.request_id: truth(admit, rig.limits)[0] for admit in admits}
    rig.actor.close()


async def test_the_orphans_of_an_idle_engine_are_ended_by_a_timer() -> None:
    rig = Rig(resume_grace_s=0.001)
    rig.admit(make_admit("r", [1, 2]))
    assert rig.actor._deadline_timer is None
    rig.actor.gone("tokenizer")
    assert rig.actor._deadline_timer is not None
    while rig.line.read_statistics(SchedulerStatistics).num_orphans_ended == 0:
        await asyncio.sleep(0)
    assert rig.actor._deadline_timer is None and rig.received() == []
    rig.actor.close()


async def test_one_timer_is_set_for_all_orphans_and_called_off_when_they_are_claimed() -> None:
    rig = Rig(resume_grace_s=1000.0)
    rig.admit(make_admit("r", [1, 2]), make_admit("s", [1, 2]))
    rig.actor.gone("tokenizer")
    timer = rig.actor._deadline_timer
    assert timer is not None
    rig.admit(make_admit("r", [1, 2], attempt=2))
    assert rig.actor._deadline_timer is timer
    rig.admit(make_admit("s", [1, 2], attempt=2))
    assert timer.cancelled() and rig.actor._deadline_timer is None
    assert rig.line.read_statistics(SchedulerStatistics).num_resumed == 2
    rig.actor.close()


async def test_the_timer_is_called_off_at_the_end() -> None:
    rig = Rig()
    rig.admit(make_admit("r", [1, 2]))
    rig.actor.gone("tokenizer")
    timer = rig.actor._deadline_timer
    rig.actor.close()
    assert timer is not None and timer.cancelled()


async def test_steps_go_on_between_the_answers_to_many_questions() -> None:
    """However many are asked at once, a result that comes meanwhile waits for a few answers and not for all."""
    rig = Rig(capacity=1000, pipeline_depth=1)
    rig.admit(make_admit("r", [1, 2], ignore_eos=True))
    rig.attach()
    rig.to_tokenizer.receive_all_nowait()
    rig.results.publish(rig.worker.work(rig.calls.plans.popleft(), 0))
    for number in range(100):
        rig.actor.handle(Explain(f"q{number}", 1, "frontend", "tokenizer", "r"))
    rig.actor.flush()
    received: list[Any] = []
    while sum(isinstance(message, Explanation) for message in received) < 100:
        received += rig.to_tokenizer.receive_all_nowait()
        await asyncio.sleep(0)
    names = [message.request_id if isinstance(message, Explanation) else "tokens" for message in received]
    place = names.index("tokens")
    assert place < 50, "a step's tokens came behind the answers"
    assert names[:place] + names[place + 1 :] == [f"q{number}" for number in range(100)]
    rig.actor.close()
