"""Large answers are written in a thread, small ones on the loop, and both say the same."""

from __future__ import annotations

import json
import threading

import msgspec
import pytest
from fake_frontend import delta, finish
from prompt_details import PROMPT_IDS, jumps, token

from callboard.actors.frontend_api import Delta
from callboard.mailbox.messages.requests import PromptDetails
from callboard.server import answer_encoder
from callboard.server.answer_encoder import INLINE_ENTRIES, AnswerEncoder, encode_answer, num_entries
from callboard.server.answer_format import CompletionFormat
from callboard.server.generation_request import AnswerOptions


def with_prompt(num_entries: int) -> Delta:
    """A delta whose prompt has so many log-probabilities, two at each position."""
    one = token("a", -0.5, (1, "b", -0.25))
    tokens = [one] * (num_entries // 2)
    return delta("x", [1], end=finish(), prompt=PromptDetails([1] * (len(tokens) + 1), "text", tokens))


@pytest.fixture
def encoder():
    encoder = AnswerEncoder()
    yield encoder
    encoder.close()


@pytest.mark.parametrize(
    ("deltas", "is_inline"),
    [
        ([delta("x", [1])], True),
        ([with_prompt(INLINE_ENTRIES)], True),
        ([with_prompt(INLINE_ENTRIES + 2)], False),
        ([with_prompt(INLINE_ENTRIES // 2 + 2)] * 2, False),
        ([delta("x" * 5, [1] * 5, logprobs=[token("x", -0.5)] * (INLINE_ENTRIES + 1))], False),
    ],
)
async def test_who_writes_what(encoder, deltas, is_inline):
    def make() -> bytes:
        return threading.current_thread().name.encode()

    name = await encoder.encode(make, deltas)
    assert (name == threading.current_thread().name.encode()) is is_inline


async def test_what_is_raised_in_the_thread_comes_out(encoder):
    def make() -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await encoder.encode(make, [with_prompt(2 * INLINE_ENTRIES)])


def test_alternatives_count():
    assert num_entries([with_prompt(10), delta("x", [1], logprobs=[token("x", -0.5)] * 3)]) == 13


def test_an_answer_written_choice_by_choice_is_the_same_bytes():
    options = AnswerOptions(num_choices=2, prompt_logprobs=1, echoes_prompt=True, echo_logprobs=1)
    answer = CompletionFormat("id", "model", 7, options).whole(
        [with_prompt(6), msgspec.structs.replace(with_prompt(8), choice=1)]
    )
    assert encode_answer(answer) == msgspec.json.encode(answer)


@pytest.mark.parametrize("streams", [False, True])
async def test_answers_are_the_same_from_the_thread(serve, http, frontend, monkeypatch, streams):
    frontend.script = jumps
    url = await serve()
    body = {"prompt": PROMPT_IDS, "n": 2, "stream": streams, "logprobs": 2, "prompt_logprobs": 1, "echo": True}
    answers = []
    for inline_entries in (INLINE_ENTRIES, 0):
        monkeypatch.setattr(answer_encoder, "INLINE_ENTRIES", inline_entries)
        async with http.post(url + "/v1/completions", json=body) as response:
            text = await response.text()
            assert response.status == 200, text
        request_id = frontend.streams[-1].request_id
        answers.append(text.replace(request_id, "ID"))
    parts = [
        [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line and "[DONE]" not in line]
        for text in answers
    ]
    for part in parts:
        for event in part:
            event.pop("created")
    assert parts[0] == parts[1]
    assert any(choice.get("prompt_logprobs") for event in parts[0] for choice in event["choices"])
