"""What a call gives: deltas and whole answers, with log-probabilities, prompts, usage and several choices."""

from __future__ import annotations

import asyncio

import pytest
from fake_frontend import delta, finish
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_server import RawServer, answer, events, piece

from callboard.client import AsyncClient, Logprob, PromptLogprob, TopLogprob
from callboard.errors import MalformedAnswer
from callboard.mailbox.messages.requests import TokenText

MESSAGES = [{"role": "user", "content": "hi"}]
USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def texts(*tokens):
    return [TokenText(text, text.encode(), -0.5, [(text, text.encode(), -0.5), ("z", b"z", -1.5)]) for text in tokens]


@pytest.fixture
async def client(serve):
    async with AsyncClient(await serve()) as client:
        yield client


def with_logprobs(stream):
    stream.push(delta("Hé", [1], logprobs=texts("Hé")), delta("y", [2], end=finish(), position=1, logprobs=texts("y")))


async def test_logprobs_of_chat(client, frontend):
    frontend.script = with_logprobs
    expected = [
        Logprob("Hé", -0.5, [TopLogprob("Hé", -0.5, "Hé".encode()), TopLogprob("z", -1.5, b"z")], "Hé".encode()),
        Logprob("y", -0.5, [TopLogprob("y", -0.5, b"y"), TopLogprob("z", -1.5, b"z")], b"y"),
    ]
    streamed = await client.chat(MESSAGES, logprobs=True, top_logprobs=2).answer()
    whole = await client.chat_whole(MESSAGES, logprobs=True, top_logprobs=2)
    assert streamed.choices[0].logprobs == whole.choices[0].logprobs == expected


async def test_logprobs_of_completions(client, frontend):
    frontend.script = with_logprobs
    expected = [
        Logprob("Hé", -0.5, [TopLogprob("Hé", -0.5), TopLogprob("z", -1.5)], None, 0),
        Logprob("y", -0.5, [TopLogprob("y", -0.5), TopLogprob("z", -1.5)], None, 2),
    ]
    streamed = await client.complete("x", logprobs=2).answer()
    whole = await client.complete_whole("x", logprobs=2)
    assert streamed.choices[0].logprobs == whole.choices[0].logprobs == expected


async def test_no_logprobs_are_none(client):
    assert (await client.complete_whole("x")).choices[0].logprobs is None
    assert (await client.chat(MESSAGES).answer()).choices[0].logprobs is None


async def test_an_echoed_prompt_has_no_first_logprob(raw, raw_client):
    logprobs = {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"b": -1.0}],
        "text_offset": [0, 1],
    }
    raw.answers = [
        answer({"choices": [{"text": "ab", "finish_reason": "length", "logprobs": logprobs}]}),
        answer(events(piece("ab", "length", logprobs=logprobs))),
    ]
    expected = [Logprob("a", None, [], None, 0), Logprob("b", -1.0, [TopLogprob("b", -1.0)], None, 1)]
    assert (await raw_client.complete_whole("a", echo=True)).choices[0].logprobs == expected
    assert (await raw_client.complete("a", echo=True).answer()).choices[0].logprobs == expected


async def test_logprobs_of_different_lengths_are_malformed(raw, raw_client):
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0]}
    raw.answers = [
        answer({"choices": [{"text": "ab", "finish_reason": "length", "logprobs": logprobs}]}),
        answer(events(piece("ab", "length", logprobs=logprobs))),
    ]
    with pytest.raises(MalformedAnswer):
        await raw_client.complete_whole("a")
    with pytest.raises(MalformedAnswer):
        await raw_client.complete("a").answer()


PROMPT_LOGPROBS = [None, {"17": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}, "4": {"logprob": -3, "rank": 9}}]
READ_PROMPT_LOGPROBS = [None, {17: PromptLogprob(-0.25, 1, "b"), 4: PromptLogprob(-3.0, 9)}]


async def test_prompt_logprobs_beside_the_choices_or_in_them(raw, raw_client):
    done = {"index": 0, "finish_reason": "stop"}
    raw.answers = [
        answer({"prompt_logprobs": PROMPT_LOGPROBS, "choices": [{"message": {"content": "a"}, **done}]}),
        answer({"choices": [{"text": "a", "prompt_logprobs": PROMPT_LOGPROBS, **done}]}),
        answer(
            events(
                {"prompt_logprobs": PROMPT_LOGPROBS, "choices": [{"delta": {"role": "assistant", "content": ""}}]},
                {"choices": [{"delta": {"content": "a"}, **done}]},
            )
        ),
        answer(events(piece("", prompt_logprobs=PROMPT_LOGPROBS, prompt_token_ids=[3, 17]), piece("a", "stop"))),
    ]
    for got in (
        await raw_client.chat_whole(MESSAGES, prompt_logprobs=1),
        await raw_client.complete_whole("x", prompt_logprobs=1),
        await raw_client.chat(MESSAGES, prompt_logprobs=1).answer(),
        await raw_client.complete("x", prompt_logprobs=1).answer(),
    ):
        assert got.choices[0].prompt_logprobs == READ_PROMPT_LOGPROBS
        assert got.text == "a"
    assert got.choices[0].prompt_token_ids == [3, 17]


async def test_whole_answers(client, frontend):
    for got in (
        await client.chat_whole(MESSAGES, n=2),
        await client.complete_whole("x", n=2),
        await client.chat(MESSAGES, n=2).answer(),
        await client.complete("x", n=2).answer(),
    ):
        assert [(c.index, c.text, c.token_ids, c.finish_reason) for c in got.choices] == [
            (0, "Hello wörld", [1, 2, 3], "stop"),
            (1, "Hello wörld", [1, 2, 3], "stop"),
        ]
        assert (got.text, got.token_ids, got.finish_reason) == ("Hello wörld", [1, 2, 3], "stop")
        assert got.choices[0].prompt_token_ids == [7, 8, 9, 10, 11]
        assert (got.usage.completion_tokens, got.usage.prompt_tokens_details.cached_tokens) == (6, 2)
        assert got.model == frontend.model_name
        assert got.request_id in {stream.request_id for stream in frontend.streams}


async def test_a_list_of_prompts_has_choices_by_prompt_and_by_n(raw, raw_client):
    chunks = [piece(str(index), "stop", index) for index in (3, 0, 1, 2)]
    raw.answers = [
        answer(events(*chunks, {"id": "x", "choices": [], "usage": USAGE})),
        answer({"choices": [chunk["choices"][0] for chunk in chunks], "usage": USAGE}),
    ]
    streamed = await raw_client.complete([[1], [2, 3]], n=2).answer()
    whole = await raw_client.complete_whole(["a", "b"], n=2)
    assert [choice.text for choice in streamed.choices] == [choice.text for choice in whole.choices] == list("0123")
    assert streamed.usage.total_tokens == whole.usage.total_tokens == 5


async def test_several_choices_in_one_chunk(raw, raw_client):
    both = {"choices": [piece("a", None, 0)["choices"][0], piece("b", "stop", 1)["choices"][0]]}
    raw.answers = [answer(events(both, piece("c", "length", 0)))]
    got = await raw_client.complete("x", n=2).answer()
    assert [(choice.text, choice.finish_reason) for choice in got.choices] == [("ac", "length"), ("b", "stop")]


async def test_choices_that_were_not_asked_for_are_not_lost(raw, raw_client):
    raw.answers = [answer(events(piece("a", "stop", 0), piece("b", None, 1), piece("c", "stop", 1)))]
    got = await raw_client.complete("x").answer()
    assert [choice.text for choice in got.choices] == ["a", "bc"]


async def test_continuous_usage(raw, raw_client):
    chunks = [
        {**piece("a"), "usage": {**USAGE, "completion_tokens": 1}},
        {**piece("b", "stop"), "usage": {**USAGE, "completion_tokens": 2}},
        {"id": "x", "choices": [], "usage": USAGE},
    ]
    raw.answers = [answer(events(*chunks))]
    stream = raw_client.complete("x", stream_options={"continuous_usage_stats": True})
    assert [delta.usage.completion_tokens async for delta in stream] == [1, 3]


@pytest.mark.parametrize(
    "choices", [[], [{"text": "a", "index": 1, "finish_reason": "stop"}], [{"text": "a", "finish_reason": None}]]
)
async def test_a_whole_answer_without_all_choices_is_malformed(raw, raw_client, choices):
    raw.answers = [answer({"choices": choices})]
    with pytest.raises(MalformedAnswer):
        await raw_client.complete_whole("x")


@settings(max_examples=40, deadline=None, database=None)
@given(
    st.lists(st.lists(st.text("aö\U0001f600", max_size=3), min_size=1, max_size=4), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_streamed_and_whole_are_the_same_however_choices_interleave(pieces, random):
    """The oracle is the list of pieces: text i of the answer is what was sent of it, joined."""
    queues = [
        [piece(text, "stop" if at == len(own) - 1 else None, index, token_ids=[at]) for at, text in enumerate(own)]
        for index, own in enumerate(pieces)
    ]
    chunks = []
    while any(queues):
        chunks.append(random.choice([queue for queue in queues if queue]).pop(0))

    async def ask():
        server = RawServer()
        server.answers = [answer(events(*chunks))]
        await server.start()
        async with AsyncClient(server.url) as client:
            got = await client.complete("x", n=len(pieces)).answer()
        await server.close()
        return got

    got = asyncio.run(ask())
    assert [choice.text for choice in got.choices] == ["".join(own) for own in pieces]
    assert [choice.token_ids for choice in got.choices] == [list(range(len(own))) for own in pieces]
