"""Batches of prompts over one client: order, bound, errors, progress."""

from __future__ import annotations

import asyncio
import io
import random

import pytest
from raw_server import answer, events, head, piece
from rich.console import Console

from callboard.client import AsyncClient, BatchProgress
from callboard.client.batch import run_batch
from callboard.client.progress_bar import ProgressBar
from callboard.errors import InvalidRequest, Overloaded

REFUSAL = {"error": {"message": "m", "type": "t", "param": None, "code": None}}


def whole(prompt):
    return answer(events(piece(f"<{prompt}>", "stop", token_ids=[1, 2])))


@pytest.fixture
async def batch(raw):
    async with AsyncClient(raw.url) as client:

        async def run(prompts, *, progress=False, max_concurrency=8, each=None, ask=None):
            return await run_batch(prompts, ask or (lambda p, i: client.complete(p)), each, progress, max_concurrency)

        yield run


async def test_results_are_in_the_order_of_the_prompts_whatever_ends_first(raw, batch):
    """Answers are given in a random order, out of those that wait."""
    waiting, most = [], 0

    async def act(request, writer):
        nonlocal most
        turn = asyncio.Event()
        waiting.append(turn)
        most = max(most, len(waiting))
        await turn.wait()
        writer.write(whole(request.json["prompt"]))
        writer.close()

    async def release():
        shuffle = random.Random(0)
        for _ in range(100):
            while not waiting:
                await asyncio.sleep(0)
            waiting.pop(shuffle.randrange(len(waiting))).set()

    raw.answers = [act]
    releasing = asyncio.create_task(release())
    results = await batch([f"p{i}" for i in range(100)])
    await releasing
    assert [result.text for result in results] == [f"<p{i}>" for i in range(100)]
    assert [result.index for result in results] == list(range(100))
    assert most <= 8


async def test_prompts_of_an_iterator_are_read_as_there_is_room(raw, batch):
    num_read = 0

    def prompts():
        nonlocal num_read
        for i in range(50):
            num_read += 1
            assert num_read <= len(raw.requests) + 4
            yield str(i)

    async def act(request, writer):
        writer.write(whole(request.json["prompt"]))
        writer.close()

    raw.answers = [act]
    results = await batch(prompts(), max_concurrency=3)
    assert [result.text for result in results] == [f"<{i}>" for i in range(50)]


async def test_one_that_fails_does_not_lose_the_others(raw, batch):
    async def act(request, writer):
        prompt = request.json["prompt"]
        if prompt == "cut":
            writer.write(head())
        else:
            writer.write(answer(REFUSAL, "400 X") if prompt == "bad" else whole(prompt))
        writer.close()

    raw.answers = [act]
    seen = []
    results = await batch(["a", "bad", "b", object(), "cut", "c"], progress=seen.append)
    assert [result.error is None for result in results] == [True, False, True, False, False, True]
    assert results[5].answer.token_ids == [1, 2]
    with pytest.raises(InvalidRequest, match="m"):
        _ = results[1].text
    with pytest.raises(InvalidRequest, match="prompt 3: object"):
        _ = results[3].answer
    assert type(results[4].error).__name__ == "StreamCut"
    last = seen[-1]
    assert (last.num_done, last.num_failed, last.num_prompts, last.num_tokens) == (6, 3, 6, 6)
    assert [progress.num_done for progress in seen] == sorted(progress.num_done for progress in seen)


async def test_a_full_queue_is_waited_for_while_others_run(raw, batch, monkeypatch):
    """Every prompt is refused once; the first one runs meanwhile."""
    refused, pauses, sleep = set(), [], asyncio.sleep
    all_refused = asyncio.Event()

    async def note(seconds):
        pauses.append(seconds)
        await sleep(0)

    async def act(request, writer):
        prompt = request.json["prompt"]
        if prompt == "0":
            await all_refused.wait()
        elif prompt not in refused:
            refused.add(prompt)
            if len(refused) == 19:
                all_refused.set()
            writer.write(answer(REFUSAL, "429 X", Retry_After="3"))
            writer.close()
            return
        writer.write(whole(prompt))
        writer.close()

    raw.answers = [act]
    monkeypatch.setattr("callboard.client.batch.asyncio.sleep", note)
    results = await batch([str(i) for i in range(20)], max_concurrency=20)
    assert [result.text for result in results] == [f"<{i}>" for i in range(20)]
    assert pauses == [3] * 19


async def test_a_queue_that_is_full_without_us_is_an_error(raw, batch):
    raw.answers = [answer(REFUSAL, "429 X", Retry_After="3")]
    (result,) = await batch(["a"])
    assert isinstance(result.error, Overloaded)


async def test_each_prompt_may_have_its_own_parameters(raw):
    raw.answers = [whole("x")]
    each = [{"seed": 1}, {"seed": 2, "max_tokens": 9}]
    async with AsyncClient(raw.url) as client:
        ask = lambda prompt, index: client.complete(prompt, **{"max_tokens": 3, **each[index]})  # noqa: E731
        await run_batch(["a", "b"], ask, each, False, 1)
        with pytest.raises(ValueError, match="each has 2 entries for 3 prompts"):
            await run_batch(["a", "b", "c"], ask, each, False, 1)
    assert [(r.json["seed"], r.json["max_tokens"]) for r in raw.requests] == [(1, 3), (2, 9)]


async def test_bad_arguments(batch):
    with pytest.raises(TypeError, match="one text"):
        await batch("hello")
    with pytest.raises(ValueError, match="max_concurrency"):
        await batch(["a"], max_concurrency=0)
    assert await batch([]) == []


async def test_cancellation_aborts_all(raw, batch):
    async def act(request, writer):
        pass

    raw.answers = [act]
    task = asyncio.create_task(batch([str(i) for i in range(20)], max_concurrency=5))
    requests = [await raw.arrivals.get() for _ in range(5)]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for request in requests:
        await request.gone.wait()
    assert len(raw.requests) == 5


def test_the_bar_shows_prompts_speed_and_failures():
    screen = io.StringIO()
    with ProgressBar(Console(file=screen, force_terminal=True, width=120)) as bar:
        bar(BatchProgress(num_done=3, num_failed=1, num_prompts=10, num_tokens=4_000, seconds=2.0))
    assert "3/10" in screen.getvalue() and "2,000 tokens/s, 1 failed" in screen.getvalue()
    assert BatchProgress(0, 0, None, 0, 0.0).tokens_per_s == 0.0


class OfTheCaller(Exception):
    pass


async def test_what_the_progress_function_raises_comes_out_as_it_is(raw, batch):
    def sink(progress: BatchProgress) -> None:
        raise OfTheCaller

    raw.answers = [whole("x")] * 20
    with pytest.raises(OfTheCaller):
        await batch(["a"] * 5, progress=sink)


async def test_what_the_iterable_of_prompts_raises_comes_out_as_it_is(raw, batch):
    def prompts():
        yield "a"
        raise OfTheCaller

    raw.answers = [whole("x")] * 20
    with pytest.raises(OfTheCaller):
        await batch(prompts())
