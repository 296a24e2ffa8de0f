"""The openai package against the real engine: chat and completions, stream and not, sync and async, 200 at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.slow

MODEL = "smol"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def server(smol_server: ServerProcess) -> ServerProcess:
    return smol_server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def make_async(server: ServerProcess) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=24)
    text, usage = whole.choices[0].message.content, whole.usage
    assert text and "Paris" in text and usage
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )


def test_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=16)
    assert "Paris" in whole.choices[0].text and whole.usage
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 16)
    chunks = list(client.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=16, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]


def test_the_async_client_gets_the_same(server: ServerProcess, client: openai.OpenAI) -> None:
    async def ask() -> tuple[list[str], list[str]]:
        async with make_async(server) as remote:
            chat = await remote.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=12)
            text = await remote.completions.create(model=MODEL, prompt=PROMPT, temperature=0, max_tokens=12)
            streamed = ["", ""]
            async for chunk in await remote.chat.completions.create(
                model=MODEL, messages=QUESTION, temperature=0, max_tokens=12, stream=True
            ):
                streamed[0] += chunk.choices[0].delta.content or ""
            async for part in await remote.completions.create(
                model=MODEL, prompt=PROMPT, temperature=0, max_tokens=12, stream=True
            ):
                streamed[1] += part.choices[0].text
            return [chat.choices[0].message.content or "", text.choices[0].text], streamed

    whole, streamed = asyncio.run(ask())
    assert whole == streamed
    sync = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=12)
    assert sync.choices[0].message.content == whole[0]


def test_errors_have_the_sdks_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=MODEL, prompt=[99_999_999], max_tokens=1)
    assert (wrong.value.param, wrong.value.type) == ("prompt", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")


async def one_of_many(remote: openai.AsyncOpenAI, number: int) -> tuple[int, int, int, str | None]:
    """Every second one is a stream, every fourth pair chat; (prompt, completion, total tokens, finish_reason)."""
    max_tokens = 1 + number % 5
    extra = {"ignore_eos": True}
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"Say the number {number}."}]
    if number % 4 == 0:
        chat = await remote.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=max_tokens, extra_body=extra
        )
        usage, finish = chat.usage, chat.choices[0].finish_reason
    elif number % 4 == 1:
        usage, finish = None, None  # type: ignore[assignment]
        async for chunk in await remote.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=max_tokens,
            extra_body=extra,
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = chunk.usage or usage
            finish = chunk.choices[0].finish_reason or finish if chunk.choices else finish  # type: ignore[assignment]
    elif number % 4 == 2:
        text = await remote.completions.create(
            model=MODEL, prompt=[number + 1, 7, 8], max_tokens=max_tokens, extra_body=extra
        )
        usage, finish = text.usage, text.choices[0].finish_reason  # type: ignore[assignment]
    else:
        usage, finish = None, None  # type: ignore[assignment]
        async for part in await remote.completions.create(
            model=MODEL,
            prompt=[number + 1, 7, 8],
            max_tokens=max_tokens,
            extra_body=extra,
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = part.usage or usage
            finish = part.choices[0].finish_reason or finish if part.choices else finish  # type: ignore[assignment]
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, finish


def test_200_requests_at_once(server: ServerProcess) -> None:
    async def all_at_once() -> list[tuple[int, int, int, str | None]]:
        async with make_async(server) as remote:
            return await asyncio.gather(*(one_of_many(remote, number) for number in range(200)))

    answers = asyncio.run(all_at_once())
    for number, (prompt_tokens, completion_tokens, total_tokens, finish) in enumerate(answers):
        assert (completion_tokens, finish) == (1 + number % 5, "length")
        assert total_tokens == prompt_tokens + completion_tokens
        if number % 4 >= 2:
            assert prompt_tokens == 3
        else:
            assert prompt_tokens > 30, "the template's system message and the question"
