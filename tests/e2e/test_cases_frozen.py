"""Processes that live and do not move: who says so, after what time, and who is not blamed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.null_engine import (
    ALL_APART,
    UNLIMITED,
    Answer,
    Oracle,
    clients,
    get,
    held,
    null_server,
    successor_held,
    until_idle,
)

pytestmark = pytest.mark.slow

DEADLINE_S = 2
NUM_TOKENS = 1_000


@pytest.fixture(scope="module")
def server(null_model: Path) -> Iterator[ServerProcess]:
    settings = (
        f"supervision.step_deadline_s={DEADLINE_S}",
        f"supervision.actor_deadline_s={DEADLINE_S}",
        "scheduler.max_num_seqs=4",
        "scheduler.max_queued_requests=8",
    )
    with null_server(null_model, *UNLIMITED, *settings, topology=ALL_APART) as server:
        yield server
        server.terminate()
        assert server.wait() == 0


def hung(server: ServerProcess, pid: int) -> str | None:
    """What the supervisor's log says of a process that it found hung."""
    match = re.search(rf"process\.hung process=\w+ pid={pid} reason=(.*)", server.log())
    return match and match.group(1).strip("'\"")


async def until_hung(server: ServerProcess, pid: int) -> str:
    while (reason := hung(server, pid)) is None:
        await asyncio.sleep(0.02)  # between two looks at the log
    return reason


@pytest.mark.parametrize("process", ["worker", pytest.param("scheduler", marks=pytest.mark.nightly)])
def test_health_names_what_is_frozen_then_it_is_replaced_and_streams_go_on(
    server: ServerProcess, oracle: Oracle, process: str
) -> None:
    """The supervisor is frozen too at first, so that what it does about it does not hide what /health says."""

    async def act() -> None:
        async with clients() as session:
            answer = Answer(server.url, session, oracle.body(0, NUM_TOKENS, stream=True))
            await answer.begun.wait()
            pid = server.pid_of(process)
            with held(server.pid):
                os.kill(pid, signal.SIGSTOP)
                while (seen := await asyncio.to_thread(get, f"{server.url}/health"))[0] == 200:
                    await asyncio.sleep(0.02)  # between two looks
                status, body = seen
                assert (status, body["status"]) == (503, "not live")
                said = re.fullmatch(
                    rf"{process}(?:'s event loop has not turned| has been in step \d+) for (\d+) s", body["reason"]
                )
                assert said and int(said.group(1)) >= DEADLINE_S // 2, body
                assert (await asyncio.to_thread(get, f"{server.url}/ready"))[0] == 503
            assert re.match(rf"{process}.* for \d+ s \((step|actor)_deadline_s\)", await until_hung(server, pid))
            await answer.task
            assert answer.texts == oracle.texts(0, NUM_TOKENS)
        while (await asyncio.to_thread(get, f"{server.url}/ready"))[0] != 200:
            await asyncio.sleep(0.02)  # between two looks
        assert get(f"{server.url}/health")[0] == 200

    asyncio.run(act())


@pytest.mark.nightly
def test_a_process_that_declares_a_slow_phase_is_not_hung(server: ServerProcess, oracle: Oracle) -> None:
    """A worker is held in its start; a tokenizer that is frozen after it is found, and the worker is not."""

    async def act() -> None:
        async with successor_held(server, "worker") as starting:
            tokenizer = server.pid_of("tokenizer")
            os.kill(tokenizer, signal.SIGSTOP)
            assert "tokenizer's event loop" in await until_hung(server, tokenizer)
            assert hung(server, starting) is None
        async with clients() as session:
            answer = Answer(server.url, session, oracle.body(1, 5))
            await answer.task
            assert answer.texts == oracle.texts(1, 5)
        assert server.pid_of("worker") == starting

    asyncio.run(act())


def test_a_server_with_more_work_than_it_can_do_is_healthy(server: ServerProcess, oracle: Oracle) -> None:
    async def act() -> None:
        async with clients() as session:
            answers = [Answer(server.url, session, oracle.body(i, NUM_TOKENS, stream=True)) for i in range(30)]
            everything = asyncio.gather(*(answer.task for answer in answers))
            num_looks = 0
            while not everything.done():
                assert await asyncio.to_thread(get, f"{server.url}/health") == (200, {"status": "live", "reason": ""})
                num_looks += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(everything), 0.05)
            assert num_looks > 1
            refused = [answer for answer in answers if answer.status == 429]
            assert refused, "more came than may wait"
            assert all(answer.error and int(answer.retry_after or 0) >= 1 for answer in refused)
            for index, answer in enumerate(answers):
                if answer not in refused:
                    assert answer.texts == oracle.texts(index, NUM_TOKENS)
        await until_idle(server.url)

    asyncio.run(act())
