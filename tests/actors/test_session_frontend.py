"""Streaming sessions at the frontend: what goes in when, what a reader sees, and what is sent again after a death."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callboard.actors.frontend_api import Delta
from callboard.actors.session_record import MAX_WAITING_INPUTS
from callboard.actors.stream import Stream
from callboard.errors import InvalidRequest, Overloaded, RequestError, Unavailable
from callboard.mailbox.messages.requests import (
    Abort,
    Delivered,
    Extend,
    Finish,
    Generate,
    Refused,
    SessionInput,
    TextPrompt,
    TokenPrompt,
    Usage,
)
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.tests.actors.frontend_rig import FrontendRig
from callboard.topology.schema import ServerSection

PAUSE = Finish("length", Usage(1, 2, 0))
END = Finish("stop", Usage(7, 1, 0))
INPUTS = [SessionInput(TextPrompt(text)) for text in "uvw"]
LAST = SessionInput(TokenPrompt([5]), True)
NEVER_S = 3600.0


class SessionRig(FrontendRig):
    """A frontend with a session `r`."""

    def open(self, idle_s: float = NEVER_S, name: str = "r") -> Stream:
        stream = self.frontend.submit(name, TokenPrompt([1]), SamplingParams(seed=1), session_idle_s=idle_s)
        (generate,) = self.sent()
        assert isinstance(generate, Generate) and generate.is_session
        return stream

    def pause(self, position: int, ids: list[int], text: str, **more: Any) -> None:
        self.deliver(position, ids, text, pauses={0: PAUSE}, **more)

    def give(self, given: SessionInput | None) -> None:
        self.frontend.add_input("r", given)


@pytest.fixture
async def rig() -> SessionRig:
    return SessionRig()


def extend(given: SessionInput, attempt: int = 1) -> Extend:
    return Extend("r", attempt, given)


def parts(delta: Delta) -> tuple[int, list[int], str, Finish | None, Finish | None]:
    return delta.position, delta.token_ids, delta.text, delta.pause, delta.finish


async def rest(stream: Stream) -> list[tuple[int, list[int], str, Finish | None, Finish | None]]:
    return [parts(delta) async for delta in stream]


async def test_input_goes_in_at_the_pause_that_is_there(rig: SessionRig) -> None:
    stream = rig.open()
    rig.pause(0, [1, 2], "ab")
    assert parts(await anext(stream)) == (0, [1, 2], "ab", PAUSE, None)
    rig.give(INPUTS[0])
    assert rig.sent() == [extend(INPUTS[0])]
    rig.deliver(2, [3], "c")
    rig.pause(3, [4], "d")
    assert parts(await anext(stream)) == (2, [3, 4], "cd", PAUSE, None)
    rig.give(LAST)
    assert rig.sent() == [extend(LAST)]
    rig.deliver(4, [5], "e", END)
    assert await rest(stream) == [(4, [5], "e", None, END)]
    assert rig.frontend.num_live_requests() == 0
    with pytest.raises(InvalidRequest) as refusal:
        rig.give(INPUTS[0])
    assert refusal.value.status == 404


async def test_input_given_ahead_goes_in_one_a_pause_and_in_order(rig: SessionRig) -> None:
    rig.open()
    for given in INPUTS:
        rig.give(given)
    assert rig.sent() == []
    for index, given in enumerate(INPUTS):
        rig.pause(index, [index], "a")
        assert rig.sent() == [extend(given)]
    rig.pause(3, [3], "a")
    assert rig.sent() == []


async def test_turns_that_were_not_read_do_not_merge(rig: SessionRig) -> None:
    """A reader that was busy sees where each turn ended."""
    stream = rig.open()
    rig.give(INPUTS[0])
    rig.deliver(0, [1], "a")
    rig.pause(1, [2], "b")
    rig.deliver(2, [3], "c")
    rig.deliver(3, [4], "d", END)
    assert await rest(stream) == [(0, [1, 2], "ab", PAUSE, None), (2, [3, 4], "cd", None, END)]


async def test_nothing_comes_behind_the_last_input_and_not_too_much_before_it(rig: SessionRig) -> None:
    rig.open()
    for _ in range(MAX_WAITING_INPUTS - 1):
        rig.give(INPUTS[0])
    rig.give(LAST)
    for given in (INPUTS[0], None):
        with pytest.raises(InvalidRequest) as refusal:
            rig.give(given)
        assert (refusal.value.status, refusal.value.code) == (409, "session_complete")
    rig = SessionRig()
    rig.open()
    for _ in range(MAX_WAITING_INPUTS):
        rig.give(INPUTS[0])
    with pytest.raises(Overloaded):
        rig.give(INPUTS[0])


@pytest.mark.parametrize(
    ("prompt", "num_bytes"),
    [(TextPrompt("a" * 40), 40), (TextPrompt("é" * 20), 40), (TextPrompt("\ud800" * 10), 30), (TokenPrompt([1] * 5), 40)],
)
async def test_inputs_that_wait_are_bounded_in_bytes(prompt: TextPrompt | TokenPrompt, num_bytes: int) -> None:
    """Together they are no longer than one body may be; one alone waits however long it is."""
    rig = SessionRig(server=ServerSection(max_request_bytes=2 * num_bytes + 1))
    rig.open()
    rig.give(SessionInput(prompt))
    rig.give(SessionInput(prompt))
    for given in (SessionInput(TextPrompt("ab")), SessionInput(TokenPrompt([1]), is_last=True)):
        with pytest.raises(Overloaded) as refusal:
            rig.give(given)
        assert (refusal.value.code, refusal.value.retry_after_s) == ("too_many_inputs", 1)
        assert f"{2 * num_bytes + 1:,} bytes" in refusal.value.message and "max_request_bytes" in refusal.value.message
    rig.give(SessionInput(TextPrompt("a")))
    rig.pause(0, [1], "a")
    rig.give(SessionInput(TextPrompt("b" * num_bytes), is_last=True))
    for turn in range(1, 4):
        rig.pause(turn, [1], "a")
    assert [message.input.prompt for message in rig.sent()] == [
        prompt, prompt, TextPrompt("a"), TextPrompt("b" * num_bytes),
    ]  # fmt: skip
    rig = SessionRig(server=ServerSection(max_request_bytes=1))
    rig.open()
    rig.give(SessionInput(prompt))
    with pytest.raises(Overloaded):
        rig.give(SessionInput(prompt))


async def test_sessions_that_wait_for_input_leave_requests_their_room() -> None:
    rig = SessionRig(capacity=100)
    rig.frontend.max_live_requests = 2
    for index in range(10):
        rig.open(name=f"s{index}")
        rig.pause(0, [1], "a", name=f"s{index}")
    first = rig.submit("r0")
    rig.frontend.add_input("s0", INPUTS[0])
    with pytest.raises(Overloaded) as refusal:
        rig.submit("r1")
    assert (refusal.value.code, refusal.value.retry_after_s) == ("queue_full", 1)
    assert "2 requests" in refusal.value.message
    rig.pause(1, [1], "a", name="s0")
    rig.submit("r1")
    first.close()
    rig.submit("r2")


@pytest.mark.parametrize("ends", ["close", "end", "told", "drop"])
async def test_sessions_have_a_limit_of_their_own(ends: str) -> None:
    """Running or paused; those that have ended, in any way, leave their place to another."""
    rig = SessionRig(capacity=100, server=ServerSection(max_sessions=3))
    rig.statistics = SchedulerStatistics(retry_after_s=17)
    first, *_ = streams = [rig.open(name=f"s{index}") for index in range(3)]
    rig.pause(0, [1], "a", name="s0")
    with pytest.raises(Overloaded) as refusal:
        rig.open(name="s3")
    assert (refusal.value.code, refusal.value.retry_after_s) == ("too_many_sessions", 17)
    assert "3 sessions" in refusal.value.message and "max_sessions" in refusal.value.message
    rig.submit("a request")
    rig.sent()
    if ends == "close":
        first.close()
    elif ends == "told":
        rig.frontend.add_input("s0", None)
    elif ends == "end":
        rig.deliver(0, [1], "a", END, name="s1")
    else:
        rig.frontend.handle(Refused("s2", 0, 1, 400, "invalid_request_error", "no"))
    rig.sent()
    assert len(streams) == 3
    rig.open(name="s3")
    with pytest.raises(Overloaded):
        rig.open(name="s4")


async def test_no_session(rig: SessionRig) -> None:
    rig.submit("other")
    for name in ("other", "nobody"):
        with pytest.raises(InvalidRequest) as refusal:
            rig.frontend.add_input(name, INPUTS[0])
        assert refusal.value.status == 404
    rig.frontend.refuse_new(Unavailable("shutting down"))
    with pytest.raises(Unavailable):
        rig.give(INPUTS[0])


@pytest.mark.parametrize("is_paused", [True, False])
async def test_told_that_no_more_comes_it_ends_as_its_turn_does(rig: SessionRig, is_paused: bool) -> None:
    stream = rig.open()
    if is_paused:
        rig.pause(0, [1], "a")
        rig.give(None)
    else:
        rig.give(None)
        rig.pause(0, [1], "a")
    assert rig.sent() == [Abort("r", 1, "the session has ended")]
    assert await rest(stream) == [(0, [1], "a", PAUSE, None), (1, [], "", None, PAUSE)]
    assert rig.frontend.num_live_requests() == 0


async def test_a_session_that_is_idle_ends_with_timeout(rig: SessionRig) -> None:
    stream = rig.open(idle_s=0.01)
    rig.pause(0, [1], "a")
    assert (await rest(stream))[-1] == (1, [], "", None, Finish("timeout", PAUSE.usage))
    assert [type(message) for message in rig.sent()] == [Abort]


@pytest.mark.parametrize("ends", ["input", "abort", "end"])
async def test_what_ends_the_pause_stops_the_clock(rig: SessionRig, ends: str) -> None:
    stream = rig.open()
    rig.pause(0, [1], "a")
    (timer,) = rig.frontend._sessions._timers.values()
    if ends == "input":
        rig.give(INPUTS[0])
    elif ends == "abort":
        stream.close()
    else:
        rig.deliver(1, [], "", Finish("timeout", PAUSE.usage))
    assert timer.cancelled() and not rig.frontend._sessions._timers


async def test_closing_aborts_a_paused_session(rig: SessionRig) -> None:
    stream = rig.open()
    rig.pause(0, [1], "a")
    stream.close()
    assert [type(message) for message in rig.sent()] == [Abort]
    assert rig.frontend.num_live_requests() == 0


async def test_a_drain_does_not_wait_for_input(rig: SessionRig) -> None:
    """One that is paused ends at once, one that runs at its pause."""
    paused = rig.open()
    rig.pause(0, [1], "a")
    running = rig.frontend.submit("s", TokenPrompt([1]), SamplingParams(seed=1), session_idle_s=NEVER_S)
    drain = asyncio.create_task(rig.frontend.drain(NEVER_S))
    assert [end for *_, end in await rest(paused)] == [None, Finish("abort", PAUSE.usage)]
    rig.pause(0, [1], "a", name="s")
    assert [end for *_, end in await rest(running)] == [None, Finish("abort", PAUSE.usage)]
    await drain


# Deaths


@pytest.mark.parametrize("victim", ["tokenizer.0", "scheduler"])
async def test_all_of_it_is_sent_again(rig: SessionRig, victim: str) -> None:
    stream = rig.open()
    rig.pause(0, [1, 2], "ab")
    rig.give(INPUTS[0])
    rig.deliver(2, [3], "cd")
    rig.give(INPUTS[1])
    rig.sent()
    rig.die(victim)
    resume = rig.resumed()
    assert resume.generate.is_session and resume.generate.attempt == 2
    assert resume.delivered == [Delivered(0, [1, 2, 3], 2)]  # the characters of the present turn
    assert (resume.pauses, resume.inputs) == ([2], INPUTS[:1])
    rig.pause(3, [4], "e", attempt=2)
    assert rig.sent() == [extend(INPUTS[1], attempt=2)]
    rig.die(victim)
    resume = rig.resumed()
    assert resume.delivered == [Delivered(0, [1, 2, 3, 4], 0)]
    assert (resume.pauses, resume.inputs) == ([2, 4], INPUTS[:2])
    rig.deliver(4, [5], "f", END, attempt=3)
    assert "".join(text for _, _, text, _, _ in await rest(stream)) == "abcdef"


async def test_resumed_while_it_is_paused_it_takes_input(rig: SessionRig) -> None:
    rig.open()
    rig.pause(0, [1, 2], "ab")
    rig.die("tokenizer.0")
    resume = rig.resumed()
    assert (resume.delivered, resume.pauses, resume.inputs) == ([Delivered(0, [1, 2], 0)], [2], [])
    rig.give(INPUTS[0])
    assert rig.sent() == [extend(INPUTS[0], attempt=2)]


async def test_input_between_a_death_and_its_settlement_comes_with_the_resume(rig: SessionRig) -> None:
    rig.open()
    rig.pause(0, [1, 2], "ab")
    rig.frontend.gone("tokenizer.0")
    rig.give(INPUTS[0])
    assert rig.sent() == []
    rig.frontend.settled(["tokenizer.0"])
    assert rig.resumed().inputs == INPUTS[:1]


async def test_a_paused_session_is_to_blame_for_no_death(rig: SessionRig) -> None:
    stream = rig.open()
    rig.pause(0, [1], "a")
    for _ in range(5):
        rig.die("scheduler")
    assert [type(message).__name__ for message in rig.sent()] == ["Resume"] * 5
    rig.give(LAST)
    for _ in range(3):
        rig.die("scheduler")
    with pytest.raises(RequestError, match="3 times"):
        await rest(stream)
