"""Where an answer starts: within the reasoning if the prompt's end has begun it, and the first delta says so once."""

from __future__ import annotations

import msgspec
import pytest

from callboard.actors.reasoning_start import reasoning_gate, state_of
from callboard.mailbox.messages.grammar import ReasoningGate
from callboard.mailbox.messages.requests import (
    ChatMessage,
    Delivered,
    Finish,
    ReasoningMarks,
    ReasoningState,
    TextPrompt,
    Usage,
)
from callboard.tests.actors.frontend_rig import FrontendRig
from callboard.tests.actors.tokenizer_rig import TokenizerRig

THINK = ReasoningMarks("think", "<think>", "</think>")
LENGTH = Finish("length", Usage(2, 9, 0))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("<|im_start|>assistant\n", "may_open"),
        ("<|im_start|>assistant\n<think>\n", "open"),  # DeepSeek R1, QwQ
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "closed"),  # Qwen 3 with enable_thinking=false
        ("user: what does <think> mean?\nassistant: ", "may_open"),
        ("user: <think>\nassistant: <think>a</think> b\nuser: c\nassistant: ", "may_open"),
    ],
)
def test_a_new_answer(text: str, state: ReasoningState) -> None:
    assert state_of(THINK, text, None) == state


@pytest.mark.parametrize(
    ("head", "content", "state"),
    [
        ("assistant: ", "<think>let me", "open"),
        ("assistant: ", "<think>let me</think> so", "closed"),
        ("assistant: <think>\n", "let me ", "open"),  # the template begins it
        ("assistant: <think>\n", "let me</think> so", "closed"),
        ("user: <think>\nassistant: ", "so ", "closed"),
    ],
)
@pytest.mark.parametrize("trims", [True, False])
def test_an_answer_that_goes_on(head: str, content: str, state: ReasoningState, trims: bool) -> None:
    message = ChatMessage("assistant", content)
    assert state_of(THINK, head + (content.rstrip() if trims else content), message) == state


def test_where_a_grammar_waits() -> None:
    assert reasoning_gate(THINK, "may_open") == ReasoningGate("<think>", "</think>", False)
    assert reasoning_gate(THINK, "open") == ReasoningGate("<think>", "</think>", True)
    assert reasoning_gate(THINK, "closed") is None
    final = ReasoningMarks("harmony", "", "<|channel|>final<|message|>")
    assert reasoning_gate(final, "may_open") == ReasoningGate("", "<|channel|>final<|message|>", True)
    assert reasoning_gate(final, "closed") is None


@pytest.mark.parametrize("num_delivered", [0, 1])
async def test_the_first_delta_of_each_choice_tells_it(num_delivered: int) -> None:
    rig, reader = TokenizerRig(), FrontendRig()
    stream = reader.submit()
    generate = msgspec.structs.replace(rig.request(prompt=TextPrompt("a <think>")), reasoning=THINK)
    rig.actor.handle(generate)
    await rig.encode()
    rig.tokens(0, [1])
    first = rig.answer()
    assert first.reasoning_states == {0: "open"}
    if num_delivered:
        reader.frontend.handle(first)
    reader.die("scheduler")
    rig.resume(generate, 2, Delivered(0, [1] * num_delivered, num_delivered))
    await rig.encode()
    rig.tokens(num_delivered, [1], LENGTH, attempt=2)
    reader.frontend.handle(rig.answer())
    told = [delta.reasoning async for delta in stream]
    assert [one for one in told if one is not None] == ["open"]


async def test_who_did_not_ask_is_not_told() -> None:
    rig = TokenizerRig()
    rig.generate(prompt=TextPrompt("a b"))
    await rig.encode()
    rig.tokens(0, [1], LENGTH)
    assert rig.answer().reasoning_states == {}
