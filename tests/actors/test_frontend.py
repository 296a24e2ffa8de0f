"""The frontend actor: deltas in, streams out; closing, refusing, draining."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callboard.actors.faults import Faults
from callboard.actors.frontend import Frontend, Stream
from callboard.actors.frontend_api import Health
from callboard.actors.sender import Sender
from callboard.errors import EngineFailure, Overloaded, ProtocolViolation, RequestError, Unavailable
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.requests import (
    Abort,
    Finish,
    FrontendToTokenizer,
    Generate,
    Refused,
    TextDeltas,
    TokenizerToFrontend,
    TokenPrompt,
    Usage,
)
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.statistics import SchedulerStatistics

END = Finish("stop", Usage(1, 3, 0))


class Rig:
    def __init__(self, capacity: int = 8) -> None:
        self.tokenizer: Inbox[Any] = Inbox(FrontendToTokenizer, capacity, 1 << 20)
        self.faults = Faults()
        self.frontend = Frontend(
            "frontend",
            Inbox(TokenizerToFrontend, 8, 1 << 20),
            {"tokenizer": Sender(LocalOutbox(self.tokenizer), self.faults)},
            self.faults,
            model_name="m",
            max_model_len=100,
            vocab_size=10,
            scheduler="scheduler",
            read_health=lambda: Health(True, True, ""),
            read_statistics=SchedulerStatistics,
        )

    def submit(self, name: str = "r") -> Stream:
        return self.frontend.submit(name, TokenPrompt([1]), SamplingParams(seed=1))

    def deliver(
        self, position: int, ids: list[int], text: str, finish: Finish | None = None, name: str = "r", attempt: int = 1
    ) -> None:
        finishes = {} if finish is None else {0: finish}
        self.frontend.handle(TextDeltas([name], [0], [attempt], [position], [ids], [text], finishes))

    def sent(self) -> list[Any]:
        return self.tokenizer.receive_all_nowait()


async def test_unread_deltas_merge_and_the_stream_ends_behind_its_finish() -> None:
    rig = Rig()
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
    rig = Rig()
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
    rig = Rig()
    stream = rig.submit()
    rig.deliver(0, [5], "a", END)
    rig.deliver(1, [6], "b")
    rig.deliver(1, [], "", END)
    rig.frontend.fail_all("too late")
    assert [delta.text async for delta in stream] == ["a"]


async def test_a_refusal_is_raised_with_its_fields() -> None:
    rig = Rig()
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
    rig = Rig()
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
    rig = Rig()
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
    rig = Rig()
    stream = rig.submit()
    reader = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    stream.close()
    assert await reader is None


async def test_closing_behind_the_end_or_behind_the_frontend_sends_nothing() -> None:
    rig = Rig()
    ended, live = rig.submit("ended"), rig.submit("live")
    rig.deliver(0, [5], "a", END, name="ended")
    ended.close()
    assert not any(isinstance(message, Abort) for message in rig.sent())
    rig.frontend.close()
    live.close()


async def test_a_full_tokenizer_is_a_429_and_nothing_is_kept() -> None:
    rig = Rig(capacity=1)
    rig.submit("a")
    with pytest.raises(Overloaded) as caught:
        rig.submit("b")
    assert caught.value.retry_after_s == 1 and rig.frontend.num_live_requests() == 1


async def test_a_drain_waits_for_the_live_and_refuses_the_new() -> None:
    rig = Rig()
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
    rig = Rig()
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
    rig = Rig()
    stream = rig.submit()
    await rig.frontend.drain(0)  # the tokenizer never answers
    assert [type(message) for message in rig.sent()] == [Generate, Abort]
    with pytest.raises(EngineFailure):
        await anext(stream)
    assert rig.frontend.num_live_requests() == 0
