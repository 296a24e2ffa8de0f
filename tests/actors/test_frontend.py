"""The frontend actor: deltas in, streams out; closing, refusing, draining."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from callboard.actors.frontend_api import Delta
from callboard.actors.stream import Stream
from callboard.errors import (
    EngineFailure,
    InvalidRequest,
    Overloaded,
    ProtocolViolation,
    RequestAtFault,
    RequestError,
    Unavailable,
)
from callboard.mailbox.messages.requests import (
    Abort,
    Delivered,
    Finish,
    Generate,
    PromptDetails,
    Refused,
    TokenText,
    Usage,
)
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.shm_queue import mark_of
from callboard.tests.actors.frontend_rig import FrontendRig

END = Finish("stop", Usage(1, 3, 0))


async def read(stream: Stream) -> list[Delta]:
    return [delta async for delta in stream]


async def test_unread_deltas_merge_and_the_stream_ends_behind_its_finish() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    rig.deliver(0, [5], "a")
    rig.deliver(1, [6, 7], "bc")
    first = await anext(stream)
    assert (first.position, first.token_ids, first.text, first.finish) == (0, [5, 6, 7], "abc", None)
    rig.deliver(3, [8], "d")
    rig.deliver(4, [], "", END)
    last = await anext(stream)
    assert (last.position, last.token_ids, last.text, last.finish) == (3, [8], "d", END)
    assert [delta async for delta in stream] == []
    assert rig.frontend.num_live_requests() == 0


async def test_tokens_that_it_has_and_other_attempts_are_dropped_and_a_gap_is_a_fault() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    rig.deliver(0, [5, 6], "ab")
    rig.deliver(0, [5, 6], "ab")
    rig.deliver(1, [6], "b")
    rig.deliver(2, [9], "x", attempt=2)
    rig.deliver(2, [9], "x", name="nobody")
    assert (await anext(stream)).text == "ab"
    for position in (1, 3):  # part of it is new; a gap
        with pytest.raises(ProtocolViolation, match=f"delta at {position}, the frontend has 2"):
            rig.deliver(position, [6, 7], "bc")


async def test_nothing_comes_after_the_terminal_event() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    rig.deliver(0, [5], "a", END)
    rig.deliver(1, [6], "b")
    rig.deliver(1, [], "", END)
    rig.frontend.fail_all("too late")
    assert [delta.text async for delta in stream] == ["a"]


async def test_a_refusal_is_raised_with_its_fields() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    rig.frontend.handle(Refused("r", 0, 2, 400, "t", "of another attempt"))
    rig.frontend.handle(Refused("r", 0, 1, 429, "rate_limit_error", "full", "prompt", "queue_full", 7))
    with pytest.raises(RequestError) as caught:
        await anext(stream)
    error = caught.value
    assert (error.status, error.type, error.message, error.param, error.code, error.retry_after_s) == (
        429, "rate_limit_error", "full", "prompt", "queue_full", 7,
    )  # fmt: skip
    assert [delta async for delta in stream] == [] and rig.frontend.num_live_requests() == 0


async def test_an_error_comes_behind_what_is_unread() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    rig.deliver(0, [5], "a")
    rig.frontend.fail_all("the model fell over")
    assert (await anext(stream)).text == "a"
    with pytest.raises(EngineFailure, match="the model fell over"):
        await anext(stream)
    with pytest.raises(Unavailable):
        rig.submit("later")


@pytest.mark.parametrize("deltas_before", [0, 1])
async def test_closing_aborts_once_and_frees_the_request(deltas_before: int) -> None:
    rig = FrontendRig()
    stream = rig.submit()
    if deltas_before:
        rig.deliver(0, [5], "a")
    stream.close()
    stream.close()
    assert [type(message) for message in rig.sent()] == [Generate, Abort]
    assert rig.frontend.num_live_requests() == 0
    rig.deliver(deltas_before, [], "", Finish("abort", Usage(1, 0, 0)))
    assert [delta async for delta in stream] == []


async def test_closing_ends_a_reader_that_waits() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    reader = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    stream.close()
    assert await reader is None


async def test_closing_behind_the_end_or_behind_the_frontend_sends_nothing() -> None:
    rig = FrontendRig()
    ended, live = rig.submit("ended"), rig.submit("live")
    rig.deliver(0, [5], "a", END, name="ended")
    ended.close()
    assert not any(isinstance(message, Abort) for message in rig.sent())
    rig.frontend.close()
    live.close()


async def test_behind_a_full_mailbox_a_few_requests_wait_and_then_it_is_a_429() -> None:
    """A mailbox is full, too, between the death of its tokenizer and the word of it: what waits then is resumed."""
    rig = FrontendRig(capacity=1)
    for index in range(1 + 64):
        rig.submit(str(index))
    with pytest.raises(Overloaded) as caught:
        rig.submit("one more")
    assert caught.value.retry_after_s == 1 and rig.frontend.num_live_requests() == 65
    rig.die("tokenizer.0")
    assert all(rig.frontend._live[str(index)].attempt == 2 for index in range(65))


async def test_requests_go_to_tokenizers_in_turn_past_one_that_is_full() -> None:
    rig = FrontendRig(capacity=2, num_tokenizers=2)
    for index in range(4):
        rig.submit(str(index))
    assert [m.request_id for m in rig.sent(0)] == ["0", "2"] and [m.request_id for m in rig.sent(1)] == ["1", "3"]
    for index in range(4, 9):
        rig.submit(str(index))
        if index == 7:
            rig.sent(1)  # it makes room, the other one stays full and keeps a message from here on
    assert "8" not in [m.request_id for m in rig.sent(0)]


async def test_a_frontend_holds_so_many_requests_and_no_more() -> None:
    rig = FrontendRig(capacity=2000)
    for index in range(1000):
        rig.submit(str(index))
    with pytest.raises(Overloaded, match="holds 1,000 requests, as many as may") as caught:
        rig.submit("one more")
    assert caught.value.code == "queue_full"


async def test_more_choices_than_ever_fit_are_a_400() -> None:
    with pytest.raises(InvalidRequest, match=r"n is 1,001, and this engine holds 1,000 answers at once"):
        FrontendRig().submit("r", num_choices=1001)


async def test_a_drain_waits_for_the_live_and_refuses_the_new() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    drain = asyncio.ensure_future(rig.frontend.drain(600))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        rig.submit("new")
    health = rig.frontend.health()
    assert (health.is_live, health.is_ready) == (True, False) and "shutting down" in health.reason
    rig.deliver(0, [5], "a", END)
    await drain
    assert [delta.finish async for delta in stream] == [END]


async def test_a_second_drain_shortens_the_first() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    first = asyncio.ensure_future(rig.frontend.drain(600))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(rig.frontend.drain(0))
    await rig.tokenizer.receive()
    assert isinstance(await rig.tokenizer.receive(), Abort)
    rig.deliver(0, [], "", Finish("abort", Usage(1, 0, 0)))
    await asyncio.gather(first, second)
    assert [delta.finish.reason async for delta in stream if delta.finish] == ["abort"]


async def test_at_the_deadline_requests_are_aborted_and_then_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.frontend._ABORT_GRACE_S", 0.01)
    rig = FrontendRig()
    stream = rig.submit()
    await rig.frontend.drain(0)  # the tokenizer never answers
    assert [type(message) for message in rig.sent()] == [Generate, Abort]
    with pytest.raises(EngineFailure):
        await anext(stream)
    assert rig.frontend.num_live_requests() == 0


# Choices


async def test_choices_merge_apart_and_the_stream_ends_with_the_last_of_them() -> None:
    rig = FrontendRig()
    stream = rig.submit(num_choices=2)
    assert rig.sent()[0].num_choices == 2
    rig.deliver(0, [5], "a", choice=1)
    rig.deliver(0, [7], "x", choice=0)
    rig.deliver(1, [6], "b", END, choice=1)
    first, second = await anext(stream), await anext(stream)
    assert (first.choice, first.token_ids, first.text, first.finish) == (1, [5, 6], "ab", END)
    assert (second.choice, second.token_ids, second.text, second.finish) == (0, [7], "x", None)
    assert rig.frontend.num_live_requests() == 1
    rig.deliver(2, [9], "late", choice=1)
    rig.deliver(1, [8], "y", END)
    (last,) = await read(stream)
    assert (last.choice, last.position, last.text, last.finish) == (0, 1, "y", END)
    assert rig.frontend.num_live_requests() == 0 and rig.sent() == []


async def test_closing_some_choices_into_the_answer_aborts_once() -> None:
    rig = FrontendRig()
    stream = rig.submit(num_choices=3)
    rig.deliver(0, [5], "a", END, choice=1)
    stream.close()
    stream.close()
    assert rig.sent()[1:] == [Abort("r", 1, "client closed the stream")]
    assert await read(stream) == []


async def test_a_refusal_of_one_choice_ends_all_behind_what_is_unread() -> None:
    rig = FrontendRig()
    stream = rig.submit(num_choices=2)
    rig.deliver(0, [5], "a")
    rig.frontend.handle(Refused("r", 1, 1, 429, "rate_limit_error", "full"))
    assert (await anext(stream)).text == "a"
    with pytest.raises(RequestError, match="full"):
        await anext(stream)
    assert await read(stream) == [] and rig.frontend.num_live_requests() == 0


async def test_merging_leaves_the_messages_as_they_are() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    entries = [[TokenText("a", b"a", -1.0, [])], [TokenText("b", b"b", -2.0, [])]]
    ids = [[5], [6]]
    for position in (0, 1):
        rig.deliver(
            position,
            ids[position],
            "x",
            logprobs={0: entries[position]},
            prompts={0: PromptDetails([1], "")} if not position else {},
        )
    delta = await anext(stream)
    assert (delta.token_ids, delta.prompt.token_ids) == ([5, 6], [1])
    assert delta.logprobs is not None and [entry.text for entry in delta.logprobs] == ["a", "b"]
    assert ids == [[5], [6]] and [len(entry) for entry in entries] == [1, 1]
    rig.deliver(2, [7], "y", END)
    (last,) = await read(stream)
    assert (last.position, last.token_ids, last.logprobs, last.prompt) == (2, [7], None, None)
    assert delta.token_ids == [5, 6]


# Deaths


async def test_a_scheduler_that_died_is_survived_with_what_was_delivered() -> None:
    rig = FrontendRig()
    stream = rig.submit(num_choices=3)
    generate = rig.sent()[0]
    rig.deliver(0, [5, 6], "é")
    rig.deliver(0, [7], "z", END, choice=1)
    assert (await anext(stream)).text == "é"
    rig.frontend.gone("scheduler")
    assert rig.sent() == [], "not before the barrier"
    rig.frontend.settled(("scheduler",))
    resume = rig.resumed()
    assert resume.generate == msgspec.structs.replace(generate, attempt=2)
    assert resume.delivered == [Delivered(0, [5, 6], 1), Delivered(2, [], 0)]
    # The first attempt's tail, a terminal event among it, is dropped; the second goes on behind what was delivered.
    rig.deliver(2, [9], "old", END)
    rig.frontend.handle(Refused("r", 2, 1, 429, "rate_limit_error", "old"))
    rig.deliver(0, [5, 6], "é", attempt=2)  # positions that it has
    rig.deliver(2, [8], "b", END, attempt=2)
    assert resume.delivered[0].token_ids == [5, 6], "a message does not change after it was sent"
    with pytest.raises(ProtocolViolation, match="choice 2: delta at 1, the frontend has 0"):
        rig.deliver(1, [8], "b", attempt=2, choice=2)
    rig.deliver(0, [4], "c", END, attempt=2, choice=2)
    deltas = await read(stream)
    assert {delta.choice: (delta.position, delta.token_ids, delta.text) for delta in deltas} == {
        1: (0, [7], "z"), 0: (2, [8], "b"), 2: (0, [4], "c"),
    }  # fmt: skip


async def test_only_the_requests_of_a_dead_tokenizer_move_and_to_the_other() -> None:
    rig = FrontendRig(num_tokenizers=2)
    for name in "abcd":
        rig.submit(name)
    rig.sent(0), rig.sent(1)
    rig.frontend.gone("tokenizer.0")
    rig.submit("e")  # behind the death: it is on its way to the successor
    rig.frontend.settled(("tokenizer.0",))
    assert [message.request_id for message in rig.sent(0)] == ["e"]
    moved = rig.sent(1)
    assert [(m.generate.request_id, m.generate.attempt, m.generate.tokenizer) for m in moved] == [
        ("a", 2, "tokenizer.1"), ("c", 2, "tokenizer.1"),
    ]  # fmt: skip
    rig.die("tokenizer.1")  # of both, those of the first attempt and those that came
    assert sorted((m.generate.request_id, m.generate.attempt) for m in rig.sent(0)) == [
        ("a", 3), ("b", 2), ("c", 3), ("d", 2),
    ]  # fmt: skip


async def test_a_lost_request_waits_for_its_own_death_to_settle() -> None:
    rig = FrontendRig(num_tokenizers=2)
    rig.submit()
    rig.sent()
    rig.frontend.gone("tokenizer.0")
    rig.die("tokenizer.1")
    assert rig.sent(0) == rig.sent(1) == []
    rig.frontend.settled(("tokenizer.0",))
    rig.frontend.settled(("tokenizer.0",))  # a second death of it that met nobody
    assert rig.resumed(1).generate.attempt == 2 and rig.sent(0) == []


async def test_a_tokenizer_that_lives_keeps_its_requests_when_the_scheduler_dies() -> None:
    rig = FrontendRig(num_tokenizers=2)
    rig.submit()
    rig.die("tokenizer.0")
    assert rig.resumed(1).generate.attempt == 2
    rig.die("scheduler")
    assert rig.resumed(1).generate.attempt == 3


async def test_a_tokenizer_that_dies_with_the_scheduler_is_one_resume() -> None:
    rig = FrontendRig()
    rig.submit()
    rig.sent()
    rig.die("scheduler", "tokenizer.0")
    assert rig.resumed().generate.attempt == 2


async def test_the_third_resume_without_a_token_ends_the_request() -> None:
    rig = FrontendRig()
    stream, other = rig.submit(num_choices=2), rig.submit("other")
    rig.sent()
    for attempt in (2, 3):
        rig.die("scheduler")
        assert [message.generate.attempt for message in rig.sent()] == [attempt] * 2
    rig.deliver(0, [5], "a", name="other", attempt=3)
    rig.die("scheduler")
    abort, resume = rig.sent()
    assert isinstance(abort, Abort) and (abort.request_id, abort.attempt) == ("r", 3)
    assert (resume.generate.request_id, resume.generate.attempt) == ("other", 4)
    with pytest.raises(RequestAtFault, match="died 3 times under this request"):
        await anext(stream)
    stream.close()
    assert rig.sent() == [] and rig.frontend.num_live_requests() == 1
    rig.die("scheduler")
    assert rig.resumed().generate.attempt == 5
    rig.die("scheduler")  # since its token: the third
    assert isinstance(rig.sent()[0], Abort)
    assert (await anext(other)).text == "a"
    with pytest.raises(EngineFailure):
        await anext(other)


async def test_a_tokenizers_death_counts_for_the_request_that_it_had_in_hand() -> None:
    rig = FrontendRig()
    stream, other = rig.submit(), rig.submit("other")
    rig.sent()
    for attempt in (2, 3):
        rig.die("tokenizer.0", suspects=[mark_of("r")])
        assert [message.generate.attempt for message in rig.sent()] == [attempt] * 2
    rig.die("tokenizer.0")
    assert [message.generate.attempt for message in rig.sent()] == [4] * 2
    rig.die("tokenizer.0", suspects=[mark_of("r")])
    abort, resume = rig.sent()
    assert (abort.request_id, resume.generate.request_id, resume.generate.attempt) == ("r", "other", 5)
    with pytest.raises(RequestAtFault, match="died 3 times"):
        await anext(stream)
    other.close()


async def test_the_death_of_a_scheduler_that_was_never_ready_counts_for_nobody() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    rig.sent()
    for attempt in range(2, 10):
        rig.die("scheduler", has_served=False)
        assert rig.resumed().generate.attempt == attempt
    stream.close()


async def test_a_closed_stream_is_not_resumed_and_its_abort_goes_to_the_successor() -> None:
    rig = FrontendRig()
    stream = rig.submit()
    rig.sent()
    rig.frontend.gone("tokenizer.0")
    stream.close()
    rig.frontend.settled(("tokenizer.0",))
    assert rig.sent() == [Abort("r", 1, "client closed the stream")]


async def test_a_drained_request_ends_at_a_death_instead_of_being_resumed() -> None:
    rig = FrontendRig()
    stream = rig.submit(num_choices=2)
    rig.deliver(0, [5, 6], "ab", choice=1)
    drain = asyncio.ensure_future(rig.frontend.drain(0))
    while len(sent := rig.sent()) == 0 or not isinstance(sent[-1], Abort):
        await asyncio.sleep(0)
    rig.die("scheduler", "tokenizer.0")
    await drain
    assert [type(message) for message in rig.sent()] == [Abort]
    deltas = await read(stream)
    assert [(d.choice, d.token_ids, d.finish) for d in deltas] == [
        (1, [5, 6], Finish("abort", Usage(0, 2, 0))), (0, [], Finish("abort", Usage(0, 0, 0))),
    ]  # fmt: skip


# Overload


@pytest.mark.parametrize(
    ("room", "num_blocks", "num_choices", "is_taken"),
    [(0, 10, 1, False), (1, 10, 1, True), (1, 10, 2, False), (2, 10, 2, True), (0, 0, 1, True)],
)
async def test_a_queue_that_the_page_shows_full_is_a_429_at_once(
    room: int, num_blocks: int, num_choices: int, is_taken: bool
) -> None:
    rig = FrontendRig()
    rig.statistics = SchedulerStatistics(num_blocks=num_blocks, num_queued_room=room, retry_after_s=17)
    if is_taken:
        rig.submit(num_choices=num_choices)
    else:
        with pytest.raises(Overloaded) as caught:
            rig.submit(num_choices=num_choices)
        assert (caught.value.retry_after_s, caught.value.code) == (17, "queue_full")
        assert f"{room} requests more" in caught.value.message
    assert rig.frontend.num_live_requests() == len(rig.sent()) == is_taken


@pytest.mark.parametrize(
    ("status", "said", "measured", "expected"),
    [(429, None, 17, 17), (429, None, 0, 1), (429, 5, 17, 5), (503, None, 17, None)],
)
async def test_a_429_without_a_time_gets_the_measured_one(
    status: int, said: int | None, measured: int, expected: int | None
) -> None:
    rig = FrontendRig()
    rig.statistics = SchedulerStatistics(retry_after_s=measured)
    stream = rig.submit()
    rig.frontend.handle(Refused("r", 0, 1, status, "t", "full", retry_after_s=said))
    with pytest.raises(RequestError) as caught:
        await anext(stream)
    assert caught.value.retry_after_s == expected
