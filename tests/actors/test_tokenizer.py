"""The tokenizer actor: prompts to ids, ids to text, and the one terminal event."""

from __future__ import annotations

import asyncio

import pytest

from callboard.errors import ProtocolViolation
from callboard.mailbox.messages.admission import Admit, Stop, TokenDeltas
from callboard.mailbox.messages.requests import (
    Abort,
    ChatMessage,
    ChatPrompt,
    Delivered,
    Finish,
    Prompt,
    Refused,
    TextPrompt,
    TokenLogprobs,
    TokenPrompt,
    Usage,
)
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.shm_queue.progress import mark_of
from callboard.tests.actors.tokenizer_rig import TokenizerRig
from callboard.text import ChatTemplate

LENGTH = Finish("length", Usage(2, 9, 0))


def prompts_of(deltas):
    return {row: prompt.token_ids for row, prompt in deltas.prompts.items()}


async def test_a_request_is_admitted_with_its_ids_and_a_final_max_tokens() -> None:
    rig = TokenizerRig()
    rig.generate(prompt=TextPrompt("ab c"))
    await rig.encode()
    assert rig.sent() == [
        Admit("r", 0, 1, "tokenizer", [4, 8, 3], SamplingParams(seed=1, max_tokens=7), (0,), 7, "salt")
    ]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "numbers", "param"),
    [
        (TokenPrompt([1] * 10), 1, ["10 tokens", "limit is 9"], "prompt"),
        (TokenPrompt([1] * 4), 7, ["4 tokens", "max_tokens is 7", "11", "limit is 10"], "max_tokens"),
        (TokenPrompt([]), 1, ["no tokens"], "prompt"),
        (ChatPrompt((ChatMessage("user", "hi"),)), 1, ["no chat template"], "messages"),
        (TextPrompt("a" * 200), 1, ["200 characters", "at least", "limit is 9"], "prompt"),
        (TextPrompt("\ud800"), 1, ["not valid Unicode"], "prompt"),
    ],
)
async def test_a_prompt_that_cannot_be_served_is_a_400_with_its_numbers(
    prompt: Prompt, max_tokens: int, numbers: list[str], param: str
) -> None:
    rig = TokenizerRig()
    rig.generate(prompt=prompt, max_tokens=max_tokens)
    await rig.encode()
    refused = rig.answer()
    assert isinstance(refused, Refused) and (refused.status, refused.param) == (400, param)
    assert all(number in refused.message for number in numbers), refused.message
    assert rig.sent() == [] and rig.holds_nothing()


async def test_the_longest_that_fits_is_taken() -> None:
    rig = TokenizerRig()
    rig.generate(prompt=TokenPrompt([1] * 4), max_tokens=6)
    await rig.encode()
    assert rig.sent()[0].sampling.max_tokens == 6


async def test_what_encoding_raises_ends_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    encode = rig.actor._tokenizer.encode

    def faulty(text: str, add_special_tokens: bool) -> list[int]:
        if text == "a":
            raise RuntimeError("panic")
        return encode(text, add_special_tokens)

    monkeypatch.setattr(rig.actor._tokenizer, "encode", faulty)
    rig.generate("bad", TextPrompt("a"))
    rig.generate("good", TextPrompt("b"))
    await rig.encode()
    refused = rig.answer()
    assert (refused.request_id, refused.status) == ("bad", 500) and "panic" in refused.message
    assert [message.request_id for message in rig.sent()] == ["good"]
    assert await rig.faults.run(asyncio.sleep(0, "alive")) == "alive"


async def test_a_template_that_fails_is_a_400_of_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    source = "{{ raise_exception('no system role') if messages[0].role == 'system' else messages[0].content }}"
    monkeypatch.setattr(rig.actor._tokenizer, "chat_template", ChatTemplate(source, {}))
    rig.generate("bad", ChatPrompt((ChatMessage("system", "a"),)))
    rig.generate("good", ChatPrompt((ChatMessage("user", "ab"),)))
    await rig.encode()
    refused = rig.answer()
    assert (refused.request_id, refused.status) == ("bad", 400) and "no system role" in refused.message
    assert [message.prompt_token_ids for message in rig.sent()] == [[4]]


async def test_an_empty_stop_string_is_refused_and_not_lost() -> None:
    rig = TokenizerRig()
    rig.generate(stop=("a", ""))
    assert (rig.answer().param, rig.holds_nothing()) == ("stop", True)


async def test_more_prompts_than_may_wait_are_a_429() -> None:
    rig = TokenizerRig(max_encodings=2)
    for name in "abc":
        rig.generate(name)
    refused = rig.answer()
    assert (refused.request_id, refused.status) == ("c", 429)
    await rig.encode()
    assert [message.request_id for message in rig.sent()] == ["a", "b"]


async def test_prompts_of_aborted_requests_count_until_the_thread_has_passed_them_and_are_not_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = TokenizerRig(max_encodings=2)
    encoded: list[str] = []
    monkeypatch.setattr(rig.actor._tokenizer, "encode", lambda text, add_special_tokens: encoded.append(text) or [1])
    for name in "ab":
        rig.generate(name, TextPrompt(name))
        rig.actor.handle(Abort(name, 1, "gone"))
    rig.generate("c", TextPrompt("c"))
    rig.actor.flush()
    refused = next(message for message in rig.to_frontend.receive_all_nowait() if isinstance(message, Refused))
    assert (refused.request_id, refused.status) == ("c", 429)
    await rig.encode()
    rig.generate("d", TextPrompt("d"))
    await rig.encode()
    assert encoded == ["d"]
    assert [message.request_id for message in rig.sent() if isinstance(message, Admit)] == ["d"]


async def test_an_abort_during_encoding_cancels_the_admission_and_still_ends_the_request() -> None:
    rig = TokenizerRig()
    rig.generate(stop=("ab",))
    rig.actor.handle(Abort("r", 1, "gone"))
    await rig.encode()
    deltas = rig.answer()
    assert (deltas.request_ids, deltas.token_ids, deltas.finishes[0].reason) == (["r"], [[]], "abort")
    assert rig.sent() == [Abort("r", 1, "gone")] and rig.holds_nothing()


async def test_an_abort_of_an_older_attempt_ends_nothing_but_goes_on() -> None:
    rig = TokenizerRig()
    rig.generate()
    await rig.encode()
    rig.actor.handle(Abort("r", 0, "old"))
    assert [type(message) for message in rig.sent()] == [Admit, Abort]
    rig.tokens(0, [1])
    assert rig.answer().texts == ["a"]


async def test_an_abort_gives_the_text_that_was_held_back() -> None:
    rig = TokenizerRig()
    rig.generate(stop=("abc",))
    await rig.encode()
    rig.tokens(0, [3, 4])
    rig.actor.handle(Abort("r", 1, "gone"))
    rig.tokens(2, [1])  # it crossed the abort
    deltas = rig.answer()
    assert (deltas.texts, deltas.token_ids, deltas.finishes[0]) == (["cab"], [[3, 4]], Finish("abort", Usage(2, 2, 0)))
    assert rig.holds_nothing()


async def test_a_stop_string_across_deltas_cuts_ids_text_usage_and_logprobs() -> None:
    rig = TokenizerRig()
    rig.generate(stop=("bca",), logprobs=0)
    await rig.encode()
    rows = lambda ids: {0: [TokenLogprobs(i, -i / 4, [], []) for i in ids]}  # noqa: E731
    rig.tokens(0, [3, 4], logprobs=rows([3, 4]))  # c ab
    first = rig.answer()
    assert (first.texts, first.token_ids, prompts_of(first)) == (["ca"], [[3, 4]], {0: [1, 2]})
    rig.tokens(2, [3, 1, 2, 1], LENGTH, logprobs=rows([3, 1, 2, 1]))  # c a b a: complete at the second
    last = rig.answer()
    assert (last.positions, last.texts, last.token_ids) == ([2], [""], [[3, 1]])
    assert last.finishes == {0: Finish("stop", Usage(2, 4, 0), "bca")}
    assert [entry.data for entry in last.logprobs[0]] == [b"c", b"a"] and last.prompts == {}
    assert rig.sent()[1:] == [Stop("r", 0, 1, 3)]
    rig.tokens(6, [1])
    rig.actor.flush()
    assert rig.to_frontend.receive_all_nowait() == [] and rig.holds_nothing()


async def test_the_schedulers_own_end_is_passed_on_and_needs_no_stop() -> None:
    rig = TokenizerRig()
    rig.generate(stop=("bb",))
    await rig.encode()
    rig.tokens(0, [1, 2, 6], LENGTH)  # half a character at the end
    deltas = rig.answer()
    assert (deltas.texts, deltas.finishes) == (["ab\ufffd"], {0: LENGTH})
    assert [type(message) for message in rig.sent()] == [Admit] and rig.holds_nothing()


async def test_tokens_it_has_are_dropped_and_a_gap_is_a_fault() -> None:
    rig = TokenizerRig()
    rig.generate()
    await rig.encode()
    rig.tokens(0, [1, 2])
    rig.tokens(0, [1, 2])
    rig.tokens(1, [2, 3])
    deltas = rig.answer()
    assert (deltas.positions, deltas.token_ids, deltas.texts) == ([0], [[1, 2, 3]], ["abc"])
    with pytest.raises(ProtocolViolation, match="tokens at 4, the tokenizer has 3"):
        rig.tokens(4, [1])


async def test_a_refusal_of_the_scheduler_is_passed_on_once() -> None:
    rig = TokenizerRig()
    rig.generate()
    await rig.encode()
    refused = Refused("r", 0, 1, 429, "rate_limit_error", "full")
    rig.actor.handle(refused)
    rig.actor.handle(refused)
    assert rig.to_frontend.receive_all_nowait() == [refused] and rig.holds_nothing()


async def test_rows_for_a_full_frontend_merge_and_come_when_there_is_room() -> None:
    rig = TokenizerRig(capacity=1)
    rig.generate()
    await rig.encode()
    for position, token_id in enumerate([1, 2, 3, 1]):
        rig.tokens(position, [token_id])
        rig.actor.flush()
    received = [await rig.to_frontend.receive() for _ in range(3)]
    assert [message.texts for message in received] == [["a"], ["b"], ["ca"]]


async def test_closing_during_an_encoding_leaves_no_task() -> None:
    rig = TokenizerRig()
    rig.generate()
    rig.actor.close()
    await rig.faults.wait_cancelled()
    assert not rig.faults._tasks


# Choices


async def test_choices_are_admitted_one_by_one_after_one_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    encoded: list[str] = []
    monkeypatch.setattr(rig.actor._tokenizer, "encode", lambda text, add_special_tokens: encoded.append(text) or [4])
    rig.generate(prompt=TextPrompt("ab"), num_choices=3, max_tokens=9, logprobs=0)
    await rig.encode()
    params = SamplingParams(seed=1, max_tokens=9, logprobs=0)
    assert rig.sent() == [Admit("r", i, 1, "tokenizer", [4], params, (0,), 7, "salt") for i in range(3)]
    assert encoded == ["ab"]
    rig.tokens(0, [1], choice=2)
    rig.tokens(0, [6], choice=0)
    rig.tokens(1, [7], LENGTH, choice=0)
    rig.tokens(2, [2], choice=0)  # behind its end
    deltas = rig.answer()
    assert (deltas.choices, deltas.texts, deltas.token_ids) == ([2, 0], ["a", "é"], [[1], [6, 7]])
    assert (deltas.finishes, prompts_of(deltas)) == ({1: LENGTH}, {0: [4], 1: [4]})
    rig.actor.handle(Abort("r", 1, "gone"))
    deltas = rig.answer()
    assert (deltas.choices, deltas.positions) == ([1, 2], [0, 1])
    assert [deltas.finishes[row].reason for row in (0, 1)] == ["abort", "abort"]
    assert rig.sent() == [Abort("r", 1, "gone")] and rig.holds_nothing()


async def test_a_choice_that_is_refused_takes_the_others_with_it() -> None:
    rig = TokenizerRig()
    rig.generate(num_choices=3)
    await rig.encode()
    rig.sent()
    rig.tokens(0, [1], LENGTH, choice=0)
    rig.answer()
    for choice in (1, 2):
        rig.actor.handle(Refused("r", choice, 1, 429, "rate_limit_error", "full"))
    assert rig.to_frontend.receive_all_nowait() == [Refused("r", 1, 1, 429, "rate_limit_error", "full")]
    assert rig.sent() == [Abort("r", 1, "another choice was refused")] and rig.holds_nothing()


# Resumed requests


async def test_a_resumed_request_goes_on_from_what_was_delivered() -> None:
    rig = TokenizerRig()
    generate = rig.request(num_choices=3, stop=("bca",), logprobs=0)
    rig.resume(generate, 2, Delivered(0, [3, 4], 2), Delivered(2, [6], 0))  # "c a" of "cab"; half an é
    await rig.encode()
    params = SamplingParams(seed=1, max_tokens=8, stop=("bca",), logprobs=0)
    assert rig.sent() == [
        Admit("r", 0, 2, "tokenizer", [1, 2], params, (0,), 7, "salt", [3, 4]),
        Admit("r", 2, 2, "tokenizer", [1, 2], params, (0,), 7, "salt", [6]),
    ]
    rows = lambda ids: {0: [TokenLogprobs(i, -i / 4, [], []) for i in ids]}  # noqa: E731
    rig.tokens(2, [2], attempt=1)  # of the attempt before
    rig.tokens(1, [4, 3, 1], attempt=2, logprobs=rows([4, 3, 1]))  # it has the first of them
    rig.tokens(1, [7], LENGTH, attempt=2, choice=2)
    deltas = rig.answer()
    assert (deltas.choices, deltas.attempts, deltas.positions) == ([0, 2], [2, 2], [2, 1])
    assert (deltas.texts, deltas.token_ids, deltas.prompts) == (["", "é"], [[3, 1], [7]], {})
    assert deltas.finishes == {0: Finish("stop", Usage(2, 4, 0), "bca"), 1: LENGTH}
    assert [entry.data for entry in deltas.logprobs[0]] == [b"c", b"a"]
    assert rig.sent() == [Stop("r", 0, 2, 3)] and rig.holds_nothing()


async def test_text_that_was_owed_comes_with_the_next_token_and_the_prompt_with_the_first() -> None:
    rig = TokenizerRig()
    generate = rig.request(num_choices=2, logprobs=0)
    rig.resume(generate, 2, Delivered(0, [1, 2, 3], 1), Delivered(1, [], 0))
    await rig.encode()
    rig.tokens(3, [8], attempt=2)
    rig.tokens(0, [8], attempt=2, choice=1)
    deltas = rig.answer()
    assert (deltas.positions, deltas.texts, prompts_of(deltas)) == ([3, 0], ["bc ", " "], {1: [1, 2]})


@pytest.mark.parametrize("is_encoded", [False, True])
async def test_a_resume_replaces_the_attempt_before_it_and_is_never_refused_for_room(is_encoded: bool) -> None:
    rig = TokenizerRig(max_encodings=1)
    generate = rig.generate()
    if is_encoded:
        await rig.encode()
        rig.tokens(0, [1, 2])
        assert [type(message) for message in rig.sent()] == [Admit]
        rig.generate("other")
    rig.resume(generate, 2, Delivered(0, [1], 1))
    await rig.encode()
    rig.actor.flush()
    rig.to_frontend.receive_all_nowait()  # of the first attempt, at most
    assert [(m.request_id, m.attempt) for m in rig.sent() if m.request_id == "r"] == [("r", 2)]
    rig.actor.handle(Abort("r", 1, "of the attempt before"))
    rig.tokens(1, [2], LENGTH, attempt=2)
    assert rig.answer().texts == ["b"]


@pytest.mark.parametrize("is_encoded", [False, True])
async def test_an_abort_of_a_resumed_request_gives_what_was_held_back_at_its_place(is_encoded: bool) -> None:
    rig = TokenizerRig()
    rig.resume(rig.request(stop=("abc",), num_choices=2), 2, Delivered(1, [3, 4], 1))
    if is_encoded:
        await rig.encode()
    rig.actor.handle(Abort("r", 2, "gone"))
    await rig.encode()
    deltas = rig.answer()
    assert (deltas.choices, deltas.positions, deltas.texts) == ([1], [2], ["ab"])
    assert deltas.finishes == {0: Finish("abort", Usage(2 * is_encoded, 2, 0))}
    assert rig.sent()[-1] == Abort("r", 2, "gone") and rig.holds_nothing()


async def test_an_abort_while_a_resumed_request_is_encoded_leaves_nothing_of_any_attempt() -> None:
    rig = TokenizerRig()
    generate = rig.generate(num_choices=2)
    await rig.encode()
    rig.tokens(0, [1])
    rig.resume(generate, 2, Delivered(0, [], 0), Delivered(1, [], 0))
    rig.actor.handle(Abort("r", 2, "gone"))
    rig.tokens(1, [2])
    await rig.encode()
    deltas = rig.answer()
    assert (deltas.attempts, deltas.positions, deltas.texts) == ([2, 2], [0, 0], ["", ""])
    assert rig.holds_nothing()


@pytest.mark.parametrize("delivered", [Delivered(0, [1, 2], 3), Delivered(0, [1, 2, 3], 1)])
async def test_a_resume_that_cannot_be_right_ends_that_request_alone(delivered: Delivered) -> None:
    rig = TokenizerRig()
    rig.resume(rig.request(stop=("bc",)), 2, delivered)  # two ids spell two characters; or "bc" is there
    await rig.encode()
    refused = rig.answer()
    assert (refused.request_id, refused.attempt, refused.status) == ("r", 2, 500)
    assert rig.sent() == [Abort("r", 2, refused.message)] and rig.holds_nothing()


# Deaths


async def test_the_requests_of_a_frontend_that_died_end() -> None:
    rig = TokenizerRig(max_encodings=4)
    rig.generate("admitted", num_choices=2)
    await rig.encode()
    rig.sent()
    rig.generate("encoding")
    rig.actor.handle(TokenDeltas(["admitted"], [1], [1], [0], [[1]], [0]))
    rig.actor.gone("frontend")
    await rig.encode()
    assert rig.sent() == [Abort("admitted", 1, "frontend died"), Abort("encoding", 1, "frontend died")]
    rig.actor.flush()
    assert rig.to_frontend.receive_all_nowait() == [] and rig.holds_nothing()


async def test_a_scheduler_that_died_leaves_states_and_unsent_rows() -> None:
    rig = TokenizerRig()
    rig.generate()
    await rig.encode()
    rig.tokens(0, [1])
    rig.actor.gone("scheduler")
    assert rig.answer().texts == ["a"] and [type(message) for message in rig.sent()] == [Admit]


# What one row raises


@pytest.mark.parametrize("broken", ["joined_bytes", "token_text", "stops"])
async def test_what_a_row_raises_ends_that_request_alone(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    rig.generate("r", num_choices=2, logprobs=0, stop=("zz",))
    rig.generate("good", logprobs=0, stop=("zz",))
    await rig.encode()
    rig.sent()
    entries = lambda ids: [TokenLogprobs(i, -1.0, [], []) for i in ids]  # noqa: E731
    rig.tokens(0, [1], logprobs={0: entries([1])})

    def faulty(*_: object) -> str:
        raise RuntimeError("panic")

    broken_of = "r"
    if broken == "stops":
        state = rig.actor._states.get((broken_of, 0))
        assert state is not None and state._stops is not None
        monkeypatch.setattr(state._stops, "push", faulty)
        bad_id = 2
    else:
        bad_id = 3
        method = getattr(rig.actor._tokenizer, broken)
        monkeypatch.setattr(
            rig.actor._tokenizer,
            broken,
            lambda ids, *more: faulty() if ids == bad_id or ids == [bad_id] else method(ids, *more),
        )
    logprobs = {0: entries([2]), 1: entries([2, bad_id]), 2: entries([4])}
    ids = [[2], [2, bad_id], [4]]
    rig.actor.handle(
        TokenDeltas(["good", "r", "good"], [0, 0, 0], [1, 1, 1], [0, 1, 1], ids, [0, 0, 0], logprobs=logprobs)
    )
    rig.tokens(3, [1])
    deltas = rig.answer()
    rows = dict(zip(zip(deltas.request_ids, deltas.choices, strict=True), range(3), strict=True))
    assert deltas.token_ids[rows["good", 0]] == [2, 4] and deltas.texts[rows["good", 0]] == "bab"
    sentence = "the answer's text could not be made: RuntimeError: panic"
    assert deltas.token_ids[rows["r", 0]] == [1] and deltas.texts[rows["r", 0]] == "a"
    assert deltas.finishes == {
        rows["r", 0]: Finish("error", Usage(2, 1, 0), message=sentence),
        rows["r", 1]: Finish("error", Usage(2, 0, 0), message=sentence),
    }
    assert rig.sent() == [Abort("r", 1, sentence)] and rig.actor._states.get(("good", 0)) is not None


async def test_an_abort_whose_text_cannot_be_made_is_an_error_of_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    rig.resume(rig.request(), 2, Delivered(0, [1], 9))  # one id has no nine characters
    rig.actor.handle(Abort("r", 2, "gone"))
    deltas = rig.answer()
    assert (deltas.positions, deltas.texts, deltas.finishes[0].reason) == ([1], [""], "error")
    assert rig.sent() == [Abort("r", 2, "gone")]


async def test_unsent_rows_do_not_change_the_lists_that_they_came_in() -> None:
    rig = TokenizerRig()
    rig.generate(logprobs=0)
    await rig.encode()
    ids = [[1], [2]]
    for position in (0, 1):
        rig.tokens(position, ids[position], logprobs={0: [TokenLogprobs(1, -1.0, [], [])]})
    deltas = rig.answer()
    assert (deltas.token_ids, len(deltas.logprobs[0]), ids) == ([[1, 2]], 2, [[1], [2]])


async def test_the_progress_line_names_the_request_whose_prompt_is_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    seen = []
    monkeypatch.setattr(rig.actor._encoder, "encode", lambda generate: seen.append(rig.line.working_on))
    rig.generate("r")
    with pytest.raises(AttributeError):  # what the planted encoder gives is no prompt
        rig.actor._prepare(rig.actor._encoding["r"])
    assert seen == [mark_of("r")] and rig.line.working_on == 0
    rig.actor.close()
