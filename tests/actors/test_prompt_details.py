"""The prompt of a request comes with the first delta of each choice, once, whatever dies on the way."""

from __future__ import annotations

import pytest

from callboard.actors import text_deltas
from callboard.mailbox.messages.admission import TokenDeltas
from callboard.mailbox.messages.requests import (
    Abort,
    Delivered,
    Finish,
    PromptDetails,
    TextPrompt,
    TokenLogprobs,
    TokenPrompt,
    TokenText,
    Usage,
)
from callboard.tests.actors.frontend_rig import FrontendRig
from callboard.tests.actors.tokenizer_rig import TokenizerRig

LENGTH = Finish("length", Usage(2, 9, 0))
ENTRIES = [TokenLogprobs(2, -1.5, [1, 6], [-0.5, -2.0], 7)]
TEXTS = [TokenText("b", b"b", -1.5, [("a", b"a", -0.5), ("\ufffd", b"\xc3", -2.0)], [1, 6], 7)]


async def test_log_probabilities_of_the_prompt_come_with_its_first_delta() -> None:
    rig = TokenizerRig()
    rig.generate(prompt=TextPrompt("a b"), prompt_logprobs=2, num_choices=2)
    await rig.encode()
    rig.tokens(0, [1], prompt_logprobs={0: ENTRIES})
    rig.tokens(1, [2])
    deltas = rig.answer()
    assert deltas.prompts == {0: PromptDetails([1, 8, 2], "a b", TEXTS)} and deltas.texts == ["ab"]
    rig.tokens(2, [1], LENGTH)
    rig.tokens(0, [], LENGTH, choice=1, prompt_logprobs={0: []})  # a choice that ends without a token
    deltas = rig.answer()
    assert deltas.choices == [0, 1] and deltas.prompts == {1: PromptDetails([1, 8, 2], "a b", [])}


async def test_a_prompt_of_one_token_has_an_empty_list_of_log_probabilities() -> None:
    rig = TokenizerRig()
    rig.generate(prompt=TokenPrompt([3]), prompt_logprobs=2)
    await rig.encode()
    rig.tokens(0, [1])
    assert rig.answer().prompts == {0: PromptDetails([3], "c", [])}


async def test_a_prompt_alone_has_no_log_probabilities() -> None:
    rig = TokenizerRig()
    rig.generate(logprobs=0)  # the rig asks for the prompt, too
    await rig.encode()
    rig.tokens(0, [1])
    assert rig.answer().prompts == {0: PromptDetails([1, 2], "ab")}


async def test_who_did_not_ask_gets_no_prompt() -> None:
    rig = TokenizerRig()
    rig.generate()
    await rig.encode()
    rig.tokens(0, [1], LENGTH)
    assert rig.answer().prompts == {}


@pytest.mark.parametrize("num_delivered", [0, 1])
async def test_a_resumed_choice_brings_its_prompt_if_nothing_of_it_was_delivered(num_delivered: int) -> None:
    """The tokenizer's first attempt made the first delta; it may have reached the frontend or not."""
    rig, reader = TokenizerRig(), FrontendRig()
    stream = reader.submit()
    generate = rig.generate(prompt_logprobs=2)
    await rig.encode()
    rig.tokens(0, [1], prompt_logprobs={0: ENTRIES})
    lost_or_not = rig.answer()
    assert len(lost_or_not.prompts) == 1
    if num_delivered:
        reader.frontend.handle(lost_or_not)
    reader.die("scheduler")
    rig.resume(generate, 2, Delivered(0, [1] * num_delivered, num_delivered))
    if not num_delivered:
        reader.frontend.handle(lost_or_not)  # too late: it is of the attempt before
    await rig.encode()
    if not num_delivered:
        rig.tokens(0, [1], attempt=2, prompt_logprobs={0: ENTRIES})
    rig.tokens(1, [2], LENGTH, attempt=2)
    reader.frontend.handle(rig.answer())
    deltas = [delta async for delta in stream]
    assert [delta.prompt for delta in deltas if delta.prompt] == [PromptDetails([1, 2], "ab", TEXTS)]
    assert "".join(delta.text for delta in deltas) == "ab"


async def test_an_aborted_choice_has_no_prompt_to_tell() -> None:
    rig = TokenizerRig()
    rig.generate(prompt_logprobs=1)
    await rig.encode()
    rig.actor.handle(Abort("r", 1, "gone"))
    assert rig.answer().prompts == {}


async def test_many_large_rows_are_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_deltas, "MAX_ENTRIES", 20)
    rig = TokenizerRig(max_encodings=9)
    for name in "abcd":
        rig.generate(name, prompt_logprobs=2)
    await rig.encode()
    for name in "abcd":  # 1 + 1 + 2 ids of the prompt + 3 of its log-probabilities: 7 a row
        rig.actor.handle(TokenDeltas([name], [0], [1], [0], [[1]], [0], prompt_logprobs={0: ENTRIES}))
    rig.actor.flush()
    messages = rig.to_frontend.receive_all_nowait()
    assert [message.request_ids for message in messages] == [["a", "b"], ["c", "d"]]
    assert all(list(message.prompts) == [0, 1] for message in messages)
    monkeypatch.setattr(text_deltas, "MAX_ENTRIES", 1)
    rig.actor.handle(TokenDeltas(["a", "b"], [0, 0], [1, 1], [1, 1], [[1, 2, 3], [1]], [0, 0]))
    rig.actor.flush()
    assert [message.token_ids for message in rig.to_frontend.receive_all_nowait()] == [[[1, 2, 3]], [[1]]]


async def test_rows_that_do_not_fit_into_a_message_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_deltas, "MAX_ENTRIES", 1)
    rig = TokenizerRig(max_encodings=9, capacity=1)
    for name in "abc":
        rig.generate(name)
        await rig.encode()
        rig.sent()
    rig.actor.handle(TokenDeltas(["a", "b", "c"], [0] * 3, [1] * 3, [0] * 3, [[1], [2], [3]], [0] * 3))
    rig.actor.flush()
    rig.actor.handle(TokenDeltas(["c", "a"], [0] * 2, [1] * 2, [1] * 2, [[1], [2]], [0] * 2))
    rig.actor.flush()
    seen = []
    while sum(map(len, seen)) < 5:
        (ids,) = (await rig.to_frontend.receive()).token_ids
        seen.append(ids)
    assert seen == [[1], [2], [3, 1], [2]]
