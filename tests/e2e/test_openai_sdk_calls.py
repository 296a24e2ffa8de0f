"""The openai package against the real engine: its list of calls with the fields of both endpoints, what it refuses, its
helpers, and that what it gives up ends on the server. `test_openai_sdk.py` has the plain calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageParam

from callboard.bench.overlap import read_counter
from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.slow

MODEL = "smol"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"
GENERATED = "callboard:generation_tokens_total"
ABORTED = 'callboard:request_success_total{finished_reason="abort"}'
LONG = 1500
UNENDING = {"ignore_eos": True}


class Place(pydantic.BaseModel):
    name: str


TOOL = openai.pydantic_function_tool(Place)


@pytest.fixture(scope="module")
def client(smol_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smol_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def paris(client: openai.OpenAI) -> tuple[list[int], str]:
    """Token ids of PROMPT and its greedy continuation of 6 tokens."""
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, temperature=0, max_tokens=6, extra_body={"return_token_ids": True}
    )
    return answer.choices[0].prompt_token_ids, answer.choices[0].text  # type: ignore[attr-defined]


# Completions


def test_every_form_of_a_prompt(client: openai.OpenAI, paris: tuple[list[int], str]) -> None:
    """Text, texts, ids, lists of ids: the same continuation, in order, whole and streamed."""
    ids, text = paris
    for prompt, num in ((PROMPT, 1), ([PROMPT, PROMPT], 2), (ids, 1), ([ids, ids], 2)):
        fields = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 6}
        whole = client.completions.create(**fields)
        assert [(choice.index, choice.text) for choice in whole.choices] == [(index, text) for index in range(num)]
        assert whole.usage
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (num * len(ids), num * 6)
        texts = [""] * num
        for chunk in client.completions.create(**fields, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [text] * num


def test_different_prompts_keep_their_order(client: openai.OpenAI, paris: tuple[list[int], str]) -> None:
    others = ["Once upon a time", PROMPT, "1, 2, 3, 4,"]
    alone = [
        client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=6).choices[0].text
        for prompt in others
    ]
    assert alone[1] == paris[1]
    together = client.completions.create(model=MODEL, prompt=others, temperature=0, max_tokens=6, n=2)
    assert [choice.text for choice in together.choices] == [text for text in alone for _ in range(2)]


def test_n_and_best_of(client: openai.OpenAI) -> None:
    """Choices of one seed differ, and come again; best_of is n or a 400."""
    fields = {"model": MODEL, "prompt": "Once", "max_tokens": 12, "seed": 5, "n": 3, "best_of": 3}
    first, again = (client.completions.create(**fields) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3 and [choice.text for choice in again.choices] == texts
    streamed, ends = [""] * 3, [0] * 3
    for chunk in client.completions.create(**fields, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
        ends[chunk.choices[0].index] += chunk.choices[0].finish_reason is not None
    assert (streamed, ends) == (texts, [1] * 3)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a", n=2, best_of=3)
    assert refused.value.param == "best_of"


def test_echo_logprobs_and_stop(client: openai.OpenAI, paris: tuple[list[int], str]) -> None:
    ids, text = paris
    answer = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=6, echo=True, logprobs=2)
    (choice,) = answer.choices
    assert choice.text == PROMPT + text and choice.logprobs
    logprobs = choice.logprobs
    assert logprobs.tokens and "".join(logprobs.tokens) == PROMPT + text
    assert len(logprobs.tokens) == len(ids) + 6
    assert logprobs.token_logprobs and logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs and all(len(top) in (2, 3) for top in logprobs.top_logprobs[1:])
    stop = text[4:9]
    cut = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=6, stop=[stop])
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].logprobs is None


def test_logit_bias_seed_penalties_and_user(client: openai.OpenAI, paris: tuple[list[int], str]) -> None:
    ids, _ = paris
    forced = client.completions.create(
        model=MODEL, prompt=PROMPT, temperature=0, max_tokens=4, logit_bias={str(ids[0]): 100}, user="u", suffix=None
    )
    assert forced.choices[0].text == "The" * 4
    punished = client.completions.create(
        model=MODEL, prompt=PROMPT, temperature=0, max_tokens=4, logit_bias={str(ids[0]): 60},
        frequency_penalty=2, presence_penalty=2, seed=1, extra_body={"repetition_penalty": 100},
    )  # fmt: skip
    assert punished.choices[0].text.count("The") < 4
    a, b = (client.completions.create(model=MODEL, prompt="Once", max_tokens=8, seed=9).choices[0].text for _ in "ab")
    assert a == b


# Chat


def test_chat_with_its_fields(client: openai.OpenAI) -> None:
    """n, log-probabilities, both limits, penalties, and the fields that have no effect."""
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, n=2, logprobs=True, top_logprobs=3, max_tokens=9, max_completion_tokens=5,
        temperature=0, seed=3, presence_penalty=0.0, frequency_penalty=0.0, stop=["\n\n\n"], logit_bias={}, user="u",
        metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True, tool_choice="none",
        response_format={"type": "text"}, modalities=["text"], extra_headers={"X-Request-Id": "mine"},
        extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True, "no_such_field": 1},
    )  # fmt: skip
    assert answer._request_id == "mine"
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage and answer.usage.completion_tokens == 2 * 5
    for choice in answer.choices:
        assert choice.message.content == answer.choices[0].message.content and choice.finish_reason == "length"
        assert choice.logprobs and choice.logprobs.content and len(choice.logprobs.content) == 5
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
        assert all(len(entry.top_logprobs) == 3 for entry in choice.logprobs.content)
        assert all(
            math.isclose(entry.logprob, entry.top_logprobs[0].logprob, abs_tol=1e-6)
            for entry in choice.logprobs.content
        )


def test_the_stream_helper(client: openai.OpenAI) -> None:
    """Its events, and a final completion that is the whole answer."""
    fields = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 12, "logprobs": True}
    whole = client.chat.completions.create(**fields)
    with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    content = whole.choices[0].message.content
    assert "".join(event.delta for event in events if event.type == "content.delta") == content
    (done,) = [event for event in events if event.type == "content.done"]
    assert done.content == final.choices[0].message.content == content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert final.usage and whole.usage and final.usage.completion_tokens == whole.usage.completion_tokens
    (kept,) = [event.content for event in events if event.type == "logprobs.content.done"]
    assert whole.choices[0].logprobs and [e.token for e in kept] == [
        e.token for e in whole.choices[0].logprobs.content or []
    ]


def test_the_stream_helper_with_several_choices_and_with_a_cut_answer(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "messages": QUESTION, "max_tokens": 20, "n": 2, "seed": 4, "stop": [" "]}
    whole = client.chat.completions.create(**fields)
    with client.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == [choice.message.content for choice in whole.choices]
    assert [choice.finish_reason for choice in final.choices] == ["stop"] * 2
    with (
        pytest.raises(openai.LengthFinishReasonError),
        client.chat.completions.stream(model=MODEL, messages=QUESTION, max_tokens=1) as stream,
    ):
        stream.get_final_completion()


def test_raw_and_streaming_responses(client: openai.OpenAI) -> None:
    fields = {"model": MODEL, "messages": QUESTION, "max_tokens": 3, "temperature": 0, "extra_body": {"typo": 1}}
    headers = {"X-Request-Id": "r1"}
    raw = client.chat.completions.with_raw_response.create(**fields, extra_headers=headers)
    assert (raw.status_code, raw.headers["x-request-id"], raw.headers["x-ignored-fields"]) == (200, "r1", "typo")
    content = raw.parse().choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        **fields, stream=True, extra_headers=headers
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"] == "r1"
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    with client.chat.completions.with_streaming_response.create(**fields) as response:
        assert response.parse().choices[0].message.content == content
    text = client.completions.with_raw_response.create(model=MODEL, prompt="a", max_tokens=1)
    assert text.headers["x-request-id"] and text.parse().choices


def test_parse_with_tools_beside_a_model(client: openai.OpenAI) -> None:
    """The answer is one of both, whole and streamed; a bias decides which."""

    class Fact(pydantic.BaseModel):
        is_true: bool

    class Weather(pydantic.BaseModel):
        unit: Literal["C", "F"]

    begin = client.post("/../tokenize", body={"prompt": "<tool_call>", "add_special_tokens": False}, cast_to=object)
    fields = {"model": MODEL, "messages": QUESTION, "max_tokens": 100, "temperature": 0, "parallel_tool_calls": False}
    fields |= {"tools": [openai.pydantic_function_tool(Weather)], "response_format": Fact}
    ends = []
    for bias in (-100, 100):
        fields["logit_bias"] = {str(begin["tokens"][0]): bias}  # type: ignore[index]
        (whole,) = client.chat.completions.parse(**fields).choices  # type: ignore[call-overload]
        with client.chat.completions.stream(**fields) as stream:  # type: ignore[arg-type]
            (streamed,) = stream.get_final_completion().choices
        for choice in (whole, streamed):
            calls = choice.message.tool_calls or []
            assert (choice.finish_reason == "tool_calls") == bool(calls) == (choice.message.parsed is None)
            assert all(isinstance(call.function.parsed_arguments, Weather) for call in calls)
            ends.append(choice.finish_reason)
    assert ends == ["stop", "stop", "tool_calls", "tool_calls"]


def test_what_is_not_supported_yet_is_a_clean_400(client: openai.OpenAI) -> None:
    """The error names the field; so do those of tools and formats that are none."""
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": 5}}
    for param, fields in (
        ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("audio", {"audio": {"voice": "alloy", "format": "wav"}}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("web_search_options", {"web_search_options": {}}),
    ):
        with pytest.raises(openai.BadRequestError, match="not supported yet") as refused:
            client.chat.completions.create(model=MODEL, messages=QUESTION, **fields)  # type: ignore[call-overload]
        assert (refused.value.param or "").startswith(param) and refused.value.code == "not_supported_yet"
    for param, fields in (
        ("response_format", {"response_format": {"type": "nonsense"}}),
        ("response_format", {"response_format": schema, "stream": True}),
        ("tools", {"tools": [TOOL, TOOL]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "Other"}}}),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=MODEL, messages=QUESTION, **fields)  # type: ignore[call-overload]
        assert (refused.value.param or "").startswith(param)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="a", suffix="b")
    assert (refused.value.param, refused.value.code) == ("suffix", "not_supported_yet")


def test_what_is_not_offered_is_a_404(client: openai.OpenAI) -> None:
    for ask in (
        lambda: client.responses.create(model=MODEL, input="a"),
        lambda: client.embeddings.create(model=MODEL, input="a"),
        lambda: client.models.retrieve("other"),
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            ask()
        assert missing.value.body and missing.value.type


# What the client gives up


@contextmanager
def given_up(server: ServerProcess, num_requests: int = 1) -> Iterator[None]:
    """So many requests are aborted by what the block does, long before their ends."""
    aborted, generated = read_counter(server.url, ABORTED), read_counter(server.url, GENERATED)
    yield
    while read_counter(server.url, ABORTED) < aborted + num_requests:
        pass
    assert read_counter(server.url, GENERATED) - generated < num_requests * LONG / 2


def test_a_timeout_of_the_client_ends_the_request(smol_server: ServerProcess, client: openai.OpenAI) -> None:
    """It bounds the wait for the next piece: in a stream for its first token, else for the whole answer."""
    unread = [*range(300, 900)]
    for stream, prompt in ((False, [300]), (True, unread)):
        with given_up(smol_server), pytest.raises(openai.APITimeoutError):
            client.completions.create(
                model=MODEL, prompt=prompt, max_tokens=LONG, timeout=0.4, stream=stream, extra_body=UNENDING
            )


def test_a_stream_that_is_closed_early_ends_the_request(smol_server: ServerProcess, client: openai.OpenAI) -> None:
    """Leaving a `with` block, `close`, and leaving the helper's block."""
    with (
        given_up(smol_server),
        client.completions.create(
            model=MODEL, prompt="Once", max_tokens=LONG, stream=True, extra_body=UNENDING
        ) as stream,
    ):
        assert next(iter(stream)).choices
    with given_up(smol_server):
        chunks = client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=LONG, stream=True, n=2, extra_body=UNENDING
        )
        assert next(iter(chunks)).choices
        chunks.close()
    with (
        given_up(smol_server),
        client.chat.completions.stream(model=MODEL, messages=QUESTION, max_tokens=LONG, extra_body=UNENDING) as helper,
    ):
        assert next(iter(helper))


def test_a_task_that_is_cancelled_ends_the_request(smol_server: ServerProcess) -> None:
    async def cancel() -> None:
        async with openai.AsyncOpenAI(base_url=f"{smol_server.url}/v1", api_key="none", max_retries=0) as remote:
            made = await asyncio.to_thread(read_counter, smol_server.url, GENERATED)
            answer = asyncio.create_task(
                remote.completions.create(model=MODEL, prompt="Once", max_tokens=LONG, extra_body=UNENDING)
            )
            while await asyncio.to_thread(read_counter, smol_server.url, GENERATED) == made:
                pass
            answer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answer

    with given_up(smol_server):
        asyncio.run(cancel())
