"""Streaming sessions at the tokenizer: each turn is spelt as the answer to all that stands before it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callboard.mailbox.messages.admission import AddInput, Admit, Stop
from callboard.mailbox.messages.requests import (
    Abort,
    Delivered,
    Extend,
    Finish,
    Generate,
    Refused,
    Resume,
    SessionInput,
    TextDeltas,
    TextPrompt,
    TokenPrompt,
    Usage,
)
from callboard.tests.actors.tokenizer_rig import TokenizerRig

A, B, C, AB, FIRST_BYTE, SECOND_BYTE = 1, 2, 3, 4, 6, 7
PROMPT = TokenPrompt([A, B])
LENGTH = Finish("length", Usage(2, 9, 0))


class SessionRig(TokenizerRig):
    """A tokenizer with a session `r`."""

    def open(self, **sampling: Any) -> Generate:
        """Hand it in; what goes to the scheduler is still to be looked at."""
        message = msgspec.structs.replace(self.request(prompt=PROMPT, **sampling), is_session=True)
        self.actor.handle(message)
        return message

    def pause(self, position: int, ids: list[int], finish: Finish = LENGTH, attempt: int = 1) -> None:
        """The scheduler says that the turn has ended."""
        self.tokens(position, ids, attempt=attempt, pauses={0: finish})

    def extend(self, prompt: TextPrompt | TokenPrompt, *, is_last: bool = False, attempt: int = 1) -> None:
        self.actor.handle(Extend("r", attempt, SessionInput(prompt, is_last)))

    def row(self) -> tuple[int, list[int], str, Finish | None, Finish | None]:
        """(position, ids, text, pause, finish) of the next message to the frontend, which has one row."""
        deltas = self.answer()
        assert isinstance(deltas, TextDeltas) and len(deltas.texts) == 1
        return deltas.positions[0], deltas.token_ids[0], deltas.texts[0], deltas.pauses.get(0), deltas.finishes.get(0)


@pytest.fixture
def rig() -> SessionRig:
    return SessionRig()


async def opened(rig: SessionRig, **sampling: Any) -> Generate:
    generate = rig.open(**sampling)
    await rig.encode()
    (admit,) = rig.sent()
    assert admit.is_session and not admit.is_paused
    return generate


async def test_turns(rig: SessionRig) -> None:
    await opened(rig, max_tokens=3)
    rig.pause(0, [A, B, C])
    assert rig.row() == (0, [A, B, C], "abc", Finish("length", Usage(2, 9, 0)), None)
    rig.extend(TextPrompt("ab"))
    await rig.encode()
    assert rig.sent() == [AddInput("r", 0, 1, [AB])]
    rig.tokens(3, [C])
    rig.pause(4, [A], Finish("length", Usage(6, 2, 0)))
    assert rig.row()[:3] == (3, [C, A], "ca")
    rig.extend(TokenPrompt([B]), is_last=True)
    await rig.encode()
    assert rig.sent() == [AddInput("r", 0, 1, [B], True)]
    end = Finish("length", Usage(9, 1, 0))
    rig.tokens(5, [B], end)
    assert rig.row() == (5, [B], "b", None, end)
    assert rig.sent() == [] and rig.holds_nothing()


async def test_half_a_character_is_told_at_the_pause_and_no_input_completes_it(rig: SessionRig) -> None:
    await opened(rig)
    rig.pause(0, [A, FIRST_BYTE])
    assert rig.row()[2] == "a\ufffd"
    rig.extend(TokenPrompt([B]))
    await rig.encode()
    rig.tokens(2, [SECOND_BYTE, A])
    assert rig.row()[2] == "\ufffda"


async def test_text_held_back_for_a_stop_string_is_told_at_the_pause(rig: SessionRig) -> None:
    await opened(rig, stop=("bc",))
    rig.pause(0, [A, B])
    assert rig.row()[2] == "ab"
    rig.extend(TokenPrompt([A]))
    await rig.encode()
    rig.sent()
    rig.tokens(2, [C, A])  # the b before belongs to another turn
    assert rig.row()[2:4] == ("ca", None)
    assert rig.sent() == []


@pytest.mark.parametrize("comes", ["behind the stop", "with the stop string", "before the stop was heard"])
async def test_a_stop_string_pauses_and_what_is_surplus_is_passed_by(rig: SessionRig, comes: str) -> None:
    """The scheduler's mark comes once, wherever it was when it heard of the stop string."""
    await opened(rig, stop=("bc",))
    if comes == "with the stop string":
        rig.pause(0, [A, B, C, A, A])
    else:
        rig.tokens(0, [A, B, C, A])
    assert rig.row() == (0, [A, B, C], "a", Finish("stop", Usage(2, 3, 0), "bc"), None)
    assert rig.sent() == [Stop("r", 0, 1, 2)]
    rig.extend(TokenPrompt([A]))
    await rig.encode()
    assert rig.sent() == [AddInput("r", 0, 1, [A])]
    if comes == "behind the stop":
        rig.tokens(4, [B, B])
        rig.pause(3, [], Finish("stop", Usage(2, 3, 0)))
    elif comes == "before the stop was heard":
        rig.pause(4, [B, B])
    rig.actor.flush()
    assert rig.to_frontend.receive_all_nowait() == []
    rig.tokens(3, [C])
    assert rig.row() == (3, [C], "c", None, None)


async def test_min_tokens_are_of_each_turn(rig: SessionRig) -> None:
    await opened(rig, stop=("b",), min_tokens=2)
    rig.pause(0, [B, A, C])
    assert rig.row()[2] == "bac"
    rig.extend(TokenPrompt([A]))
    await rig.encode()
    rig.sent()
    rig.tokens(3, [B, A, B])
    assert rig.row() == (3, [B, A, B], "ba", Finish("stop", Usage(6, 3, 0), "b"), None)


@pytest.mark.parametrize(
    "prompt", [TokenPrompt([A] * 5), TextPrompt("\ud800"), TokenPrompt([])], ids=["long", "no Unicode", "empty"]
)
async def test_input_that_cannot_be_taken_ends_the_session(rig: SessionRig, prompt: TextPrompt | TokenPrompt) -> None:
    """Two tokens of the prompt, three of output, and five are ten, the model's length."""
    await opened(rig)
    rig.pause(0, [A, B, C])
    rig.row()
    rig.extend(prompt)
    await rig.encode()
    refused = rig.answer()
    assert isinstance(refused, Refused) and refused.status == 400
    assert [type(message) for message in rig.sent()] == [Abort] and rig.holds_nothing()


async def test_the_longest_input_that_fits(rig: SessionRig) -> None:
    await opened(rig)
    rig.pause(0, [A, B, C])
    rig.extend(TokenPrompt([A] * 4))
    await rig.encode()
    assert rig.sent() == [AddInput("r", 0, 1, [A] * 4)]


@pytest.mark.parametrize("is_encoding", [True, False])
async def test_an_abort_at_a_pause_ends_it(rig: SessionRig, is_encoding: bool) -> None:
    await opened(rig)
    rig.pause(0, [A])
    rig.row()
    if is_encoding:
        rig.extend(TokenPrompt([B]))
    rig.actor.handle(Abort("r", 1, "gone"))
    assert rig.row() == (1, [], "", None, Finish("abort", Usage(2, 1, 0)))
    await rig.encode()
    assert [type(message) for message in rig.sent()] == [Abort] and rig.holds_nothing()


@pytest.mark.parametrize("stop", [(), ("a",)])
async def test_a_deadline_at_a_pause_ends_it(rig: SessionRig, stop: tuple[str, ...]) -> None:
    await opened(rig, stop=stop)
    rig.tokens(0, [A]) if stop else rig.pause(0, [A])
    assert rig.row()[3] is not None
    rig.tokens(1, [], Finish("timeout", Usage(2, 1, 0)))
    assert rig.row() == (1, [], "", None, Finish("timeout", Usage(2, 1, 0)))
    assert rig.holds_nothing()


# Resumed

OUTPUT = [A, B, C, A]
"""Of two turns of two tokens."""


async def resumed(
    rig: SessionRig, num_chars: int, token_ids: list[int], pauses: list[int], *inputs: SessionInput, **sampling: Any
) -> Admit:
    generate = msgspec.structs.replace(rig.request(prompt=PROMPT, **sampling), is_session=True, attempt=2)
    rig.actor.handle(Resume(generate, [Delivered(0, token_ids, num_chars)], pauses, list(inputs)))
    await rig.encode()
    (admit,) = rig.sent()
    assert isinstance(admit, Admit)
    return admit


async def test_resumed_inside_its_second_turn(rig: SessionRig) -> None:
    admit = await resumed(rig, 1, OUTPUT[:3], [2], SessionInput(TextPrompt("ab")))
    assert admit.prompt_token_ids == [A, B, A, B, AB]
    assert (admit.output_token_ids, admit.first_output_index) == ([C], 2)
    assert (admit.is_session, admit.is_paused, admit.attempt) == (True, False, 2)
    rig.tokens(3, [A], Finish("length", Usage(5, 2, 0)), attempt=2)
    assert rig.row() == (3, [A], "a", None, Finish("length", Usage(5, 2, 0)))


async def test_resumed_inside_its_last_turn(rig: SessionRig) -> None:
    admit = await resumed(rig, 0, OUTPUT[:2], [2], SessionInput(TokenPrompt([B]), True))
    assert (admit.prompt_token_ids, admit.output_token_ids) == ([A, B, A, B, B], [])
    assert not admit.is_session and admit.first_output_index == 2


@pytest.mark.parametrize("num_turns", [1, 2])
async def test_resumed_while_it_is_paused(rig: SessionRig, num_turns: int) -> None:
    inputs = [SessionInput(TokenPrompt([B]))][: num_turns - 1]
    admit = await resumed(rig, 0, OUTPUT[: 2 * num_turns], [2, 4][:num_turns], *inputs, stop=("ca",))
    assert admit.prompt_token_ids == ([A, B] if num_turns == 1 else [A, B, A, B, B])
    assert admit.output_token_ids == OUTPUT[2 * num_turns - 2 : 2 * num_turns]
    assert admit.is_paused and admit.is_session
    rig.extend(TokenPrompt([C]), attempt=2)
    await rig.encode()
    assert rig.sent() == [AddInput("r", 0, 2, [C])]
    rig.pause(2 * num_turns, [B], attempt=2)
    usage = Usage(2 + 3 * num_turns, 1, 0)
    assert rig.row()[:3] == (2 * num_turns, [B], "b")
    rig.actor.handle(Abort("r", 2, "gone"))
    assert rig.row()[4] == Finish("abort", usage)


async def test_input_that_comes_while_it_is_resumed_goes_in_behind_it(rig: SessionRig) -> None:
    generate = msgspec.structs.replace(rig.request(prompt=PROMPT), is_session=True, attempt=2)
    rig.actor.handle(Resume(generate, [Delivered(0, [A], 0)], [1]))
    rig.extend(TokenPrompt([B]), attempt=2)
    await rig.encode()
    assert [type(message) for message in rig.sent()] == [Admit, AddInput]


async def test_input_of_an_earlier_attempt_is_dropped(rig: SessionRig) -> None:
    await resumed(rig, 0, OUTPUT[:2], [2], SessionInput(TokenPrompt([B])))
    rig.extend(TokenPrompt([B]), attempt=1)
    await rig.encode()
    assert rig.sent() == []


async def test_aborted_before_it_was_resumed(rig: SessionRig) -> None:
    """The text that the frontend lacks comes with the end: of the present turn alone."""
    generate = msgspec.structs.replace(rig.request(prompt=PROMPT), is_session=True, attempt=2)
    rig.actor.handle(Resume(generate, [Delivered(0, OUTPUT, 1)], [2], [SessionInput(TokenPrompt([B]))]))
    rig.actor.handle(Abort("r", 2, "gone"))
    position, ids, text, _, finish = rig.row()
    assert (position, ids, text) == (4, [], "a")
    assert finish is not None and finish.usage.completion_tokens == 2
