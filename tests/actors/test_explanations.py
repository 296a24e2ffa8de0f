"""A question about a request: by way of a tokenizer to the scheduler and back, asked again after a death of either."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from callboard.actors.faults import Faults
from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.errors import EngineFailure
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.admission import SchedulerToTokenizer, TokenizerToScheduler
from callboard.mailbox.messages.requests import Abort, Explain, Explanation, RequestLedger, WaitTime
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.events import Event
from callboard.scheduling.scheduler import Scheduler
from callboard.shm_queue.progress import LINE_WORDS, ProgressLine
from callboard.tests.actors.frontend_rig import FrontendRig
from callboard.tests.actors.tokenizer_rig import TokenizerRig
from callboard.tests.scheduling.fake_worker import make_admit, make_limits


def ledger(choice: int = 0) -> RequestLedger:
    return RequestLedger(
        choice, "waiting", 5, 7, None, WaitTime(blocks_ns=3), 0, 0, 12, 0, 0, (), (), 0, waits_for="blocks"
    )


class Asked:
    """A frontend's question that waits for its answer."""

    def __init__(self, rig: FrontendRig, about: str = "r") -> None:
        self.task = asyncio.ensure_future(rig.frontend.explain(about))

    async def begin(self) -> Asked:
        await asyncio.sleep(0)
        return self


def one(rig: FrontendRig, tokenizer: int = 0) -> Any:
    (message,) = rig.sent(tokenizer)
    return message


async def test_it_goes_out_naming_its_way_back_and_the_answer_comes() -> None:
    rig = FrontendRig()
    asked = await Asked(rig).begin()
    question = one(rig)
    assert question == Explain(question.request_id, 1, "frontend", "tokenizer.0", "r")
    answer = Explanation(question.request_id, 1, "r", 9, (ledger(),))
    rig.frontend.handle(Explanation(question.request_id, 2, "r", 9, ()))
    rig.frontend.handle(answer)
    assert await asked.task == answer
    assert not rig.frontend._questions._open


async def test_it_is_asked_again_after_the_death_of_its_tokenizer_by_way_of_another() -> None:
    rig = FrontendRig(num_tokenizers=2)
    asked = await Asked(rig).begin()
    name = one(rig, 0).request_id
    rig.die("tokenizer.0")
    assert one(rig, 1) == Explain(name, 2, "frontend", "tokenizer.1", "r")
    rig.frontend.handle(Explanation(name, 2, "r", 1, ()))
    assert (await asked.task).choices == ()


async def test_it_is_asked_again_after_the_death_of_the_scheduler_of_the_same_tokenizer() -> None:
    rig = FrontendRig(num_tokenizers=2)
    asked = await Asked(rig).begin()
    name = one(rig, 0).request_id
    rig.frontend.gone("scheduler")
    assert rig.sent(0) == rig.sent(1) == [], "not before the barrier"
    rig.frontend.settled(("scheduler",))
    assert (one(rig, 0), rig.sent(1)) == (Explain(name, 2, "frontend", "tokenizer.0", "r"), [])
    rig.frontend.settled(("worker",))
    assert rig.sent(0) == []
    asked.task.cancel()


async def test_with_tokenizer_and_scheduler_dead_it_waits_for_the_tokenizer() -> None:
    rig = FrontendRig(num_tokenizers=2)
    asked = await Asked(rig).begin()
    name = one(rig, 0).request_id
    rig.frontend.gone("tokenizer.0")
    rig.frontend.settled(("scheduler",))
    assert rig.sent(0) == rig.sent(1) == []
    rig.frontend.settled(("tokenizer.0",))
    assert one(rig, 1) == Explain(name, 2, "frontend", "tokenizer.1", "r")
    asked.task.cancel()


async def test_the_end_of_the_engine_ends_it() -> None:
    rig = FrontendRig()
    asked = await Asked(rig).begin()
    rig.frontend.fail_all("over")
    with pytest.raises(EngineFailure):
        await asked.task


# The tokenizer


def ask(rig: TokenizerRig, attempt: int = 1) -> Explain:
    question = Explain("q", attempt, "frontend", "tokenizer", "r")
    rig.actor.handle(question)
    return question


async def test_a_tokenizer_passes_the_question_on_and_the_answer_back() -> None:
    """Whether or not it knows the request, and without waiting for its encode thread."""
    rig = TokenizerRig(max_encodings=0)
    question = ask(rig)
    assert rig.sent() == [question]
    answer = Explanation("q", 1, "r", 3, (ledger(0), ledger(1)))
    rig.actor.handle(answer)
    assert rig.to_frontend.receive_all_nowait() == [answer]
    rig.actor.handle(answer)
    assert rig.to_frontend.receive_all_nowait() == [] and rig.holds_nothing()


async def test_an_answer_of_another_attempt_is_dropped() -> None:
    rig = TokenizerRig()
    ask(rig, 1)
    ask(rig, 2)
    rig.actor.handle(Explanation("q", 1, "r", 3, ()))
    assert rig.to_frontend.receive_all_nowait() == []
    rig.actor.handle(Explanation("q", 2, "r", 3, ()))
    assert [message.attempt for message in rig.to_frontend.receive_all_nowait()] == [2]


@pytest.mark.parametrize("reason", ["abort", "death"])
async def test_one_that_nobody_waits_for_is_forgotten(reason: str) -> None:
    rig = TokenizerRig()
    ask(rig)
    rig.sent()
    if reason == "abort":
        rig.actor.handle(Abort("q", 1, "nobody waits"))
    else:
        rig.actor.gone("frontend")
    assert rig.holds_nothing() and rig.sent() == []
    rig.actor.handle(Explanation("q", 1, "r", 3, ()))
    assert rig.to_frontend.receive_all_nowait() == []


# The scheduler


class Told(Scheduler):
    """Says what a test has put into it, and keeps what it was given."""

    ledgers: dict[str, tuple[RequestLedger, ...]]
    seen: list[tuple[int, list[Event]]]

    def explain(self, request_id: str) -> tuple[RequestLedger, ...]:
        return self.ledgers.get(request_id, ())

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        self.seen.append((now_ns, list(events)))
        return super().step(now_ns, events)


async def test_a_scheduler_answers_behind_the_events_that_came_before_and_journals_nothing_of_it() -> None:
    inboxes: dict[str, Inbox[Any]] = {name: Inbox(SchedulerToTokenizer, 8, 1 << 20) for name in ("tokenizer", "other")}
    faults = Faults()
    scheduler = Told(make_limits())
    scheduler.ledgers, scheduler.seen = {"r": (ledger(),)}, []
    actor = SchedulerActor(
        "scheduler",
        Inbox(TokenizerToScheduler, 8, 1 << 20),
        {name: Sender(LocalOutbox(inbox), faults) for name, inbox in inboxes.items()},
        scheduler,
        ProgressLine(np.zeros(LINE_WORDS, np.uint64)),
        faults,
    )
    admit = make_admit("r", [1, 2])
    actor.handle(Explain("q", 3, "frontend", "other", "r"))
    actor.handle(admit)
    actor.handle(Explain("p", 1, "frontend", "tokenizer", "unknown"))
    actor.flush()
    ((now_ns, events),) = scheduler.seen
    assert events == [admit]
    assert inboxes["other"].receive_all_nowait() == [Explanation("q", 3, "r", now_ns, (ledger(),))]
    assert inboxes["tokenizer"].receive_all_nowait() == [Explanation("p", 1, "unknown", now_ns, ())]
    actor.flush()
    assert [inbox.receive_all_nowait() for inbox in inboxes.values()] == [[], []], "each is answered once"
    actor.close()


# All three


async def test_frontend_tokenizer_and_scheduler_understand_each_other() -> None:
    rig, other = FrontendRig(), TokenizerRig()
    asked = await Asked(rig, "cmpl-1").begin()
    (question,) = rig.sent()
    other.actor.handle(question)
    (passed,) = other.sent()
    other.actor.handle(Explanation(passed.request_id, passed.attempt, passed.about, 4, (ledger(),)))
    for message in other.to_frontend.receive_all_nowait():
        rig.frontend.handle(message)
    assert (await asked.task).choices == (ledger(),)
