"""Clients that leave: what they asked for stops at once, wherever it is, and nothing of it stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.bench.overlap import read_counter
from callboard.bench.process_samples import sample_process
from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.null_engine import (
    PATIENT,
    Answer,
    Oracle,
    clients,
    held,
    null_server,
    until_gauge,
    until_idle,
    until_live,
)

pytestmark = pytest.mark.slow

NUM_BLOCKS = 2048
"""One request of full length."""
LONG = 30_000
MESSAGES = [{"role": "user", "content": "Write a long story"}]
PREEMPTIONS = "callboard:num_preemptions_total"
GENERATED = "callboard:generation_tokens_total"


@pytest.fixture(scope="module")
def server(null_model: Path) -> Iterator[ServerProcess]:
    with null_server(null_model, f"kv_cache.num_blocks={NUM_BLOCKS}", *PATIENT) as server:
        yield server
        server.terminate()
        assert server.wait() == 0
        assert "Traceback" not in server.log()


async def leave(*answers: Answer) -> None:
    """Close the connections without a word."""
    for answer in answers:
        answer.task.cancel()
    await asyncio.gather(*(answer.task for answer in answers), return_exceptions=True)


async def check_good(server: ServerProcess, oracle: Oracle) -> None:
    """Everything is at rest, no token more is made, and a good request is served."""
    await until_idle(server.url)
    before = await asyncio.to_thread(read_counter, server.url, GENERATED)
    async with clients() as session:
        good = Answer(server.url, session, oracle.body(500, 7))
        await good.task
        assert good.texts == oracle.texts(500, 7)
    assert await asyncio.to_thread(read_counter, server.url, GENERATED) == before + 7


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("num_choices", [1, 2])
@pytest.mark.parametrize("moment", ["behind-the-first-text", "before-the-first-text"])
def test_a_client_that_leaves(
    server: ServerProcess, oracle: Oracle, path: str, stream: bool, num_choices: int, moment: str
) -> None:
    """The worker stands still when it leaves and until the request has ended, so that it did not just run out."""

    async def act() -> None:
        worker = server.pid_of("worker")
        body = oracle.body(0, LONG // num_choices, stream=stream, n=num_choices)
        if "chat" in path:
            del body["prompt"]
            body["messages"] = MESSAGES
        async with clients() as session:
            if moment == "before-the-first-text":
                with held(worker):
                    answer = Answer(server.url, session, body, path)
                    await until_live(server.url, num_choices)
                    await leave(answer)
                    await until_live(server.url, 0)
            else:
                before = await asyncio.to_thread(read_counter, server.url, GENERATED)
                answer = Answer(server.url, session, body, path)
                if stream:
                    await answer.begun.wait()
                while await asyncio.to_thread(read_counter, server.url, GENERATED) == before:
                    pass
                with held(worker):
                    await leave(answer)
                    await until_live(server.url, 0)
                assert await asyncio.to_thread(read_counter, server.url, GENERATED) < before + LONG
        await check_good(server, oracle)

    asyncio.run(act())


def test_clients_that_leave_while_requests_preempt_each_other(server: ServerProcess, oracle: Oracle) -> None:
    async def act() -> None:
        prompt = [7] * 20_000
        async with clients() as session:
            before = await asyncio.to_thread(read_counter, server.url, PREEMPTIONS)
            answers = [
                Answer(server.url, session, oracle.body(i, 12_000, prompt=[300 + i, *prompt], stream=i % 2 == 0))
                for i in range(2)
            ] + [Answer(server.url, session, oracle.body(9, 400, prompt=[400] * 12_000, stream=True))]
            while await asyncio.to_thread(read_counter, server.url, PREEMPTIONS) == before and not all(
                answer.task.done() for answer in answers
            ):
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(read_counter, server.url, PREEMPTIONS) > before
            await leave(*answers)
        await check_good(server, oracle)

    asyncio.run(act())


async def cancel_early(server: ServerProcess, count: int, draw: random.Random) -> None:
    """Requests with prompts of 20,000 characters, 64 at once, each left after 0 to 30 ms."""
    async with clients() as session:
        numbers = iter(range(count))

        async def run() -> None:
            for _ in numbers:
                text = "".join(draw.choice("abcdefgh ij") for _ in range(200)) * 100
                answer = Answer(server.url, session, {"prompt": text, "max_tokens": 5, "stream": True})
                await asyncio.wait([answer.task], timeout=draw.uniform(0, 0.03))
                await leave(answer)

        await asyncio.gather(*(run() for _ in range(64)))
    await until_idle(server.url)


def test_requests_cancelled_while_they_are_encoded(server: ServerProcess, oracle: Oracle) -> None:
    asyncio.run(cancel_early(server, 150, random.Random(0)))
    asyncio.run(check_good(server, oracle))


@pytest.mark.nightly
def test_two_thousand_of_them_leave_no_memory_behind(null_model: Path, oracle: Oracle) -> None:
    with null_server(null_model, f"kv_cache.num_blocks={NUM_BLOCKS}") as server:
        memory = []
        for round_ in range(4):
            asyncio.run(cancel_early(server, 500, random.Random(round_)))
            memory.append(sample_process(server.pid_of("control"), 0.0, 0).memory_bytes)
        print(f"\ncontrol, RssAnon + VmSwap after each 500: {[round(m / 1e6, 1) for m in memory]} MB")
        assert abs(memory[3] - memory[2]) < 0.02 * memory[2]
        asyncio.run(check_good(server, oracle))


def test_a_burst_of_long_requests_that_are_given_up_blocks_nobody(server: ServerProcess, oracle: Oracle) -> None:
    """200 of them, each as long as it can be; all are left before they end, and the next one is served."""

    async def act() -> None:
        body = {"messages": MESSAGES, "max_tokens": LONG, "ignore_eos": True}
        async with clients() as session:
            with held(server.pid_of("worker")):
                answers = [Answer(server.url, session, body, "/v1/chat/completions") for _ in range(200)]
                await until_live(server.url, 200)
                await leave(*answers)
            assert all(answer.status is None and answer.error is None for answer in answers)
            late = Answer(server.url, session, oracle.body(1, 10))
            await late.task
            assert late.texts == oracle.texts(1, 10)
        await check_good(server, oracle)

    asyncio.run(act())


@pytest.mark.accept
def test_behind_200_requests_that_timed_out_the_next_is_answered_in_5_s(tiny_llama_dir: Path) -> None:
    """With a model that computes."""

    async def act(server: ServerProcess) -> None:
        body = {"messages": MESSAGES, "max_tokens": 4000, "ignore_eos": True}
        async with clients() as session:
            answers = [Answer(server.url, session, body, "/v1/chat/completions") for _ in range(200)]
            await asyncio.wait([answer.task for answer in answers], timeout=0.5)
            assert not any(answer.task.done() for answer in answers)
            await leave(*answers)
            assert all(answer.status is None for answer in answers)
            async with asyncio.timeout(5):
                late = Answer(server.url, session, {"prompt": [70], "max_tokens": 10, "ignore_eos": True})
                await late.task
            assert late.end == "length"
        await until_gauge(server.url, "callboard:kv_cache_usage_perc", 0)

    with ServerProcess(str(tiny_llama_dir)) as server:
        asyncio.run(act(server))
