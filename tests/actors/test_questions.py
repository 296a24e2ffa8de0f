"""Questions without state: asked by a frontend, answered by a tokenizer, asked again when that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from callboard.actors import answers
from callboard.errors import EngineFailure, Overloaded, RequestAtFault, Unavailable
from callboard.mailbox.messages.requests import (
    AS_IT_IS,
    Abort,
    ChatMessage,
    ChatPrompt,
    Detokenize,
    Detokenized,
    Prompt,
    PromptOptions,
    Refused,
    TextPrompt,
    Tokenize,
    Tokenized,
    TokenPrompt,
)
from callboard.shm_queue.progress import mark_of
from callboard.tests.actors.frontend_rig import FrontendRig
from callboard.tests.actors.tokenizer_rig import TokenizerRig
from callboard.text import ChatTemplate

# The frontend


async def begin(asking: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """The question is on its way."""
    task = asyncio.ensure_future(asking)
    await asyncio.sleep(0)
    return task


def tokenize(rig: FrontendRig, text: str = "ab") -> Coroutine[Any, Any, Tokenized]:
    return rig.frontend.tokenize(TextPrompt(text), AS_IT_IS, returns_strings=True)


def asked(rig: FrontendRig, tokenizer: int = 0) -> Any:
    """The one message that went to a tokenizer."""
    (message,) = rig.sent(tokenizer)
    return message


def is_empty(rig: FrontendRig) -> bool:
    return not rig.frontend._questions._open and rig.frontend.num_live_requests() == 0


async def test_a_question_goes_out_and_its_answer_comes_back() -> None:
    rig = FrontendRig()
    asking = await begin(tokenize(rig))
    question = asked(rig)
    assert question == Tokenize(question.request_id, 1, "frontend", TextPrompt("ab"), AS_IT_IS, True)
    answer = Tokenized(question.request_id, 1, [4], ["ab"])
    rig.frontend.handle(answer)
    assert await asking == answer and is_empty(rig)
    asking = await begin(rig.frontend.detokenize([4, 1]))
    question = asked(rig)
    assert question == Detokenize(question.request_id, 1, "frontend", [4, 1])
    rig.frontend.handle(Detokenized(question.request_id, 1, "aba"))
    assert await asking == "aba" and is_empty(rig)
    rig.frontend.handle(Detokenized(question.request_id, 1, "once more"))


async def test_a_refusal_is_raised_with_its_fields() -> None:
    rig = FrontendRig()
    asking = await begin(tokenize(rig))
    name = asked(rig).request_id
    rig.frontend.handle(Refused(name, 0, 2, 500, "t", "of another attempt"))
    rig.frontend.handle(Refused(name, 0, 1, 400, "invalid_request_error", "no", "prompt", "why"))
    with pytest.raises(Exception, match="no") as caught:
        await asking
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "prompt", "why") and is_empty(rig)


async def test_a_429_gets_the_measured_time() -> None:
    rig = FrontendRig()
    rig.statistics = type(rig.statistics)(retry_after_s=17)
    asking = await begin(tokenize(rig))
    rig.frontend.handle(Refused(asked(rig).request_id, 0, 1, 429, "rate_limit_error", "full"))
    with pytest.raises(Exception, match="full") as caught:
        await asking
    assert caught.value.retry_after_s == 17


async def test_a_full_mailbox_and_a_full_table_are_a_429() -> None:
    rig = FrontendRig(capacity=1)
    waiting = [await begin(tokenize(rig)) for _ in range(1 + 64)]
    with pytest.raises(Overloaded, match="mailbox is full") as caught:
        await tokenize(rig)
    assert caught.value.retry_after_s == 1
    rig.frontend.max_live_requests = len(waiting)
    with pytest.raises(Overloaded, match="as many as may"):
        await tokenize(rig)
    rig.frontend.fail_all("over")
    assert all(isinstance(error, EngineFailure) for error in await asyncio.gather(*waiting, return_exceptions=True))
    assert is_empty(rig)


async def test_a_caller_that_is_cancelled_withdraws_its_question() -> None:
    rig = FrontendRig()
    asking = await begin(tokenize(rig))
    question = asked(rig)
    asking.cancel()
    rig.frontend.handle(Tokenized(question.request_id, 1, []))  # in the same moment
    await asyncio.wait([asking])
    assert asking.cancelled() and is_empty(rig)
    asking = await begin(tokenize(rig))
    question = asked(rig)
    asking.cancel()
    await asyncio.wait([asking])
    assert asked(rig) == Abort(question.request_id, 1, "nobody waits for the answer") and is_empty(rig)
    rig.frontend.handle(Tokenized(question.request_id, 1, []))


async def test_a_question_to_a_tokenizer_that_died_is_asked_of_another_when_that_is_settled() -> None:
    rig = FrontendRig(num_tokenizers=2)
    asking, other = await begin(tokenize(rig)), await begin(tokenize(rig))
    question, kept = asked(rig, 0), asked(rig, 1)
    rig.frontend.gone("tokenizer.0")
    assert rig.sent(0) == rig.sent(1) == [], "not before the barrier"
    rig.frontend.settled(("worker", "tokenizer.0"))
    again = asked(rig, 1)
    assert (again.request_id, again.attempt, again.prompt) == (question.request_id, 2, question.prompt)
    rig.frontend.handle(Tokenized(question.request_id, 1, [1], ["of the first attempt"]))
    rig.frontend.handle(Tokenized(kept.request_id, 1, [2]))
    rig.frontend.handle(Tokenized(question.request_id, 2, [3]))
    assert ((await other).token_ids, (await asking).token_ids) == ([2], [3]) and is_empty(rig)
    assert rig.sent(0) == rig.sent(1) == []


async def test_of_a_scheduler_that_died_a_question_knows_nothing() -> None:
    rig = FrontendRig()
    asking = await begin(tokenize(rig))
    name = asked(rig).request_id
    rig.die("scheduler")
    assert rig.sent() == []
    rig.frontend.handle(Tokenized(name, 1, [1]))
    assert (await asking).token_ids == [1]


async def test_a_question_that_kills_tokenizers_is_not_asked_for_ever() -> None:
    rig = FrontendRig()
    asking, other = await begin(tokenize(rig)), await begin(tokenize(rig))
    name = rig.sent()[0].request_id
    for attempt in (2, 3):
        rig.die("tokenizer.0", suspects=[mark_of(name)])
        assert [message.attempt for message in rig.sent()] == [attempt] * 2
    rig.die("tokenizer.0", suspects=[mark_of(name)])
    assert asked(rig).attempt == 4
    with pytest.raises(RequestAtFault, match="died 3 times"):
        await asking
    other.cancel()


async def test_a_drain_waits_for_answers_and_at_its_deadline_for_none() -> None:
    rig = FrontendRig()
    asking = await begin(tokenize(rig))
    drain = await begin(rig.frontend.drain(600))
    with pytest.raises(Unavailable):
        await tokenize(rig)
    assert not drain.done()
    rig.frontend.handle(Tokenized(asked(rig).request_id, 1, [1]))
    await drain
    assert (await asking).token_ids == [1]
    rig = FrontendRig()
    asking = await begin(tokenize(rig))
    await rig.frontend.drain(0)
    with pytest.raises(EngineFailure, match="shutting down"):
        await asking
    assert is_empty(rig)


@pytest.mark.parametrize("end", ["fail_all", "close"])
async def test_the_end_of_the_engine_ends_questions(end: str) -> None:
    rig = FrontendRig()
    asking = await begin(tokenize(rig))
    if end == "close":
        rig.frontend.close()
    else:
        rig.frontend.fail_all("the model fell over")
    with pytest.raises(EngineFailure):
        await asking
    assert is_empty(rig)
    with pytest.raises(Unavailable):
        await rig.frontend.detokenize([1])


# The tokenizer


def ask(
    rig: TokenizerRig,
    prompt: Prompt,
    options: PromptOptions = AS_IT_IS,
    returns_strings: bool = False,
    name: str = "q",
    attempt: int = 1,
) -> None:
    rig.actor.handle(Tokenize(name, attempt, "frontend", prompt, options, returns_strings))


@pytest.mark.parametrize(
    ("prompt", "options", "ids", "strings"),
    [
        (TextPrompt("ab cé"), AS_IT_IS, [4, 8, 3, 6, 7], ["ab", "Ġ", "c", "Ã", "©"]),
        (TextPrompt(""), AS_IT_IS, [], []),
        (TextPrompt("a" * 50), AS_IT_IS, [1] * 50, ["a"] * 50),  # more than the model takes
        (TokenPrompt([0, 4, 99]), AS_IT_IS, [0, 4, 99], ["<eos>", "ab", ""]),
        (TextPrompt("abc"), PromptOptions(truncate_prompt_tokens=1), [3], ["c"]),
        (ChatPrompt((ChatMessage("user", "b"),)), AS_IT_IS, [2, 1], ["b", "a"]),
        (ChatPrompt((ChatMessage("user", "b"),)), PromptOptions(add_generation_prompt=False), [2], ["b"]),
    ],
)
async def test_ids_and_the_vocabularys_own_strings(
    prompt: Prompt, options: PromptOptions, ids: list[int], strings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = TokenizerRig()
    template = ChatTemplate("{{ messages[0].content }}{{ 'a' if add_generation_prompt }}", {})
    monkeypatch.setattr(rig.actor._tokenizer, "chat_template", template)
    ask(rig, prompt, options, returns_strings=True)
    ask(rig, prompt, options, name="p")
    await rig.encode()
    assert rig.answer() == Tokenized("q", 1, ids, strings) and rig.answer() == Tokenized("p", 1, ids)
    assert rig.holds_nothing() and rig.sent() == []


async def test_text_of_ids_with_special_tokens() -> None:
    rig = TokenizerRig()
    rig.actor.handle(Detokenize("q", 3, "frontend", [4, 0, 6, 7, 6]))
    await rig.encode()
    assert rig.answer() == Detokenized("q", 3, "ab<eos>é\ufffd") and rig.holds_nothing()


@pytest.mark.parametrize(
    ("question", "words", "param"),
    [
        (Tokenize("q", 1, "frontend", TextPrompt("\ud800"), AS_IT_IS), "not valid Unicode", "prompt"),
        (Tokenize("q", 1, "frontend", TextPrompt("a" * 21), AS_IT_IS), "21 characters, the limit is 20", "prompt"),
        (Tokenize("q", 1, "frontend", TokenPrompt([1] * 10), AS_IT_IS), "10 ids, the limit is 9", "prompt"),
        (Tokenize("q", 1, "frontend", TokenPrompt([0] * 2), AS_IT_IS), "10 bytes of text, the limit is 8", "prompt"),
        (Detokenize("q", 1, "frontend", [1] * 10), "10 ids, the limit is 9", "tokens"),
        (Detokenize("q", 1, "frontend", [0] * 2), "10 bytes of text, the limit is 8", "tokens"),
        (
            Tokenize("q", 1, "frontend", ChatPrompt((ChatMessage("user", "b"),)), AS_IT_IS),
            "no chat template",
            "messages",
        ),
        (
            Tokenize("q", 1, "frontend", TextPrompt("a"), PromptOptions(truncate_prompt_tokens=-2)),
            "truncate_prompt_tokens is -2",
            "truncate_prompt_tokens",
        ),
    ],
)
async def test_what_cannot_be_answered_is_a_400(
    question: Tokenize | Detokenize, words: str, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_CHARS", 20)
    monkeypatch.setattr(answers, "MAX_IDS", 9)
    monkeypatch.setattr(answers, "MAX_BYTES", 8)
    rig = TokenizerRig()
    rig.actor.handle(question)
    await rig.encode()
    refused = rig.answer()
    assert (refused.request_id, refused.attempt, refused.status, refused.param) == ("q", 1, 400, param)
    assert words in refused.message and rig.holds_nothing()


async def test_what_answering_raises_ends_that_question_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()

    def faulty(*_: object, **__: object) -> str:
        raise RuntimeError("panic")

    monkeypatch.setattr(rig.actor._tokenizer, "decode", faulty)
    rig.actor.handle(Detokenize("bad", 1, "frontend", [1]))
    ask(rig, TextPrompt("a"), name="good")
    await rig.encode()
    refused = rig.answer()
    assert (refused.request_id, refused.status) == ("bad", 500) and "panic" in refused.message
    assert rig.answer() == Tokenized("good", 1, [1])


async def test_questions_and_prompts_wait_together_and_are_a_429_together() -> None:
    rig = TokenizerRig(max_encodings=2)
    rig.generate("r")
    ask(rig, TextPrompt("a"), name="p")
    ask(rig, TextPrompt("a"), name="q")
    rig.generate("s")
    ask(rig, TextPrompt("a"), name="again", attempt=2)  # it was taken once
    refusals = [rig.answer(), rig.answer()]
    assert [(r.request_id, r.status) for r in refusals] == [("q", 429), ("s", 429)]
    await rig.encode()
    assert [rig.answer().request_id for _ in range(2)] == ["p", "again"] and rig.actor._num_encodings == 0


@pytest.mark.parametrize("reason", ["abort", "death"])
async def test_a_question_that_is_withdrawn_is_not_looked_at(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    encoded: list[str] = []
    monkeypatch.setattr(rig.actor._tokenizer, "encode", lambda text, add_special_tokens: encoded.append(text) or [1])
    ask(rig, TextPrompt("a"), attempt=2)
    rig.actor.handle(Abort("q", 1, "of the attempt before"))
    rig.sent()
    assert not rig.holds_nothing()
    if reason == "abort":
        rig.actor.handle(Abort("q", 2, "nobody waits"))
    else:
        rig.actor.gone("frontend")
    assert rig.holds_nothing()
    await rig.encode()
    assert encoded == [] and rig.to_frontend.receive_all_nowait() == [] and rig.sent() == []
    assert rig.actor._num_encodings == 0


async def test_only_the_latest_attempt_is_answered() -> None:
    rig = TokenizerRig()
    ask(rig, TextPrompt("a"), attempt=1)
    ask(rig, TextPrompt("a"), attempt=2)
    await rig.encode()
    assert rig.to_frontend.receive_all_nowait() == [Tokenized("q", 2, [1])]


async def test_the_progress_line_names_the_question_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    seen = []
    monkeypatch.setattr(rig.actor._tokenizer, "token_string", lambda _: seen.append(rig.line.working_on) or "")
    ask(rig, TextPrompt("a"), returns_strings=True)
    await rig.encode()
    assert seen == [mark_of("q")] and rig.line.working_on == 0


# Both


async def test_a_frontend_and_a_tokenizer_understand_each_other() -> None:
    rig, other = FrontendRig(), TokenizerRig()
    asking = [
        await begin(tokenize(rig, "ab é")),
        await begin(rig.frontend.detokenize([4, 8, 6, 7])),
        await begin(rig.frontend.tokenize(ChatPrompt((ChatMessage("user", "b"),)), AS_IT_IS)),
    ]
    other.actor._max_encodings = 3
    for message in rig.sent():
        other.actor.handle(message)
    await other.encode()
    for message in other.to_frontend.receive_all_nowait():
        rig.frontend.handle(message)
    first, second, third = await asyncio.gather(*asking, return_exceptions=True)
    assert (first.token_ids, first.token_strings, second) == ([4, 8, 6, 7], ["ab", "Ġ", "Ã", "©"], "ab é")
    assert isinstance(third, Exception) and "no chat template" in str(third)
    assert is_empty(rig) and other.holds_nothing()
