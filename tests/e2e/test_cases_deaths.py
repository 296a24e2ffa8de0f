"""Processes that are killed under load: what clients, probes and service managers see, and what is left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.null_engine import (
    ALL_APART,
    PATIENT,
    UNLIMITED,
    Answer,
    Oracle,
    Remains,
    clients,
    get,
    null_server,
    run_directories,
    successor_held,
    until_idle,
    until_live,
)

pytestmark = pytest.mark.slow

NUM_TOKENS = 600
REASONS = {"worker": "scheduler is waiting for a worker"}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    """TMPDIR of the engines of this module; short, for paths of sockets are."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def server(null_model: Path, temporary: Path, send: Callable[..., Any]) -> Iterator[ServerProcess]:
    """After all that the tests do to it: it stops with status 0, and nothing of it is left."""
    with null_server(null_model, *UNLIMITED, *PATIENT, topology=ALL_APART) as server:
        yield server
        assert send(f"{server.url}/v1/chat/completions", CHAT).status == 200
        remains = Remains(server)
        assert len(run_directories(temporary)) == 1
        server.terminate()
        assert server.wait() == 0
        remains.wait_gone()
        assert run_directories(temporary) == []
        assert "engine.failed" not in server.log()


@pytest.mark.parametrize("process", ["tokenizer", "scheduler", "worker"])
def test_while_a_process_is_away_streams_wait_and_new_requests_queue(
    server: ServerProcess, oracle: Oracle, process: str
) -> None:
    async def act() -> None:
        async with clients() as session:
            bodies = [
                oracle.body(0, NUM_TOKENS, stream=True),
                oracle.body(1, NUM_TOKENS, stream=True, n=2),
                oracle.body(2, NUM_TOKENS),
                oracle.body(3, NUM_TOKENS, n=2),
            ]
            answers = [Answer(server.url, session, body) for body in bodies]
            await answers[0].begun.wait()
            await answers[1].begun.wait()
            others = set(server.children()) - {server.pid_of(process)}
            async with successor_held(server, process) as held:
                assert get(f"{server.url}/health") == (200, {"status": "live", "reason": ""})
                status, ready = get(f"{server.url}/ready")
                assert (status, ready["status"]) == (503, "not ready")
                assert ready["reason"] == REASONS.get(process, f"{process} is starting")
                bodies += [oracle.body(4, 20, stream=True), oracle.body(5, 20, n=2)]
                answers += [Answer(server.url, session, body) for body in bodies[4:]]
                if process == "worker":  # the others are on the way of a request to the queue
                    await until_live(server.url, 1 + 2 + 1 + 2 + 1 + 2)
            await asyncio.gather(*(answer.task for answer in answers))
            for index, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
                assert answer.texts == oracle.texts(index, body["max_tokens"], body.get("n", 1)), (index, answer.end)
                assert set(answer.finishes.values()) == {"length"} and answer.has_terminal
            await until_idle(server.url)
            assert get(f"{server.url}/ready")[0] == 200
            assert set(server.children()) == others | {held}

    asyncio.run(act())


def test_a_frontends_death_cuts_its_streams_and_the_next_one_answers(server: ServerProcess, oracle: Oracle) -> None:
    async def act() -> None:
        async with clients() as session:
            answers = [Answer(server.url, session, oracle.body(i, 30_000, stream=i % 2 == 0)) for i in range(4)]
            await answers[0].begun.wait()
            os.kill(server.pid_of("frontend"), signal.SIGKILL)
            await asyncio.gather(*(answer.task for answer in answers))
            assert all(answer.is_cut for answer in answers)
            after = Answer(server.url, session, oracle.body(9, 5))  # waits in the port's queue for the next frontend
            await after.task
            assert after.texts == oracle.texts(9, 5)
            await until_idle(server.url)

    asyncio.run(act())


@pytest.mark.parametrize(
    "process",
    ["worker", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("frontend", "tokenizer", "scheduler"))],
)
def test_an_engine_that_cannot_go_on_says_why_and_exits_with_1(
    null_model: Path, oracle: Oracle, temporary: Path, process: str
) -> None:
    """Also when SIGTERM comes while it ends."""

    async def act(server: ServerProcess) -> None:
        async with clients() as session:
            answers = [Answer(server.url, session, oracle.body(i, 30_000, stream=True)) for i in range(3)]
            await asyncio.gather(*(answer.begun.wait() for answer in answers))
            os.kill(server.pid_of(process), signal.SIGKILL)
            if process != "frontend":  # it holds the streams
                await asyncio.gather(*(answer.task for answer in answers))
                assert {answer.end for answer in answers} == {"200 server_error"}
                assert all(answer.has_terminal for answer in answers)
            server.terminate()
            await asyncio.gather(*(answer.task for answer in answers))

    before = run_directories(temporary)
    with null_server(null_model, f"process.{process}.restart.max=0", topology=ALL_APART) as server:
        remains = Remains(server)
        asyncio.run(act(server))
        assert server.wait() == 1
        remains.wait_gone()
        assert re.search(rf"engine.failed reason='process {process} died 1 times .*SIGKILL", server.log())
    assert run_directories(temporary) == before


def test_a_killed_supervisor_leaves_no_process_and_no_memory_and_the_next_start_takes_its_directory_away(
    null_model: Path, oracle: Oracle, temporary: Path, send: Callable[..., Any]
) -> None:
    async def act(server: ServerProcess) -> None:
        async with clients() as session:
            answers = [Answer(server.url, session, oracle.body(i, 30_000, stream=True)) for i in range(3)]
            await asyncio.gather(*(answer.begun.wait() for answer in answers))
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.gather(*(answer.task for answer in answers))  # no client waits for ever
            assert all(answer.is_cut for answer in answers)

    before = run_directories(temporary)
    with null_server(null_model, topology=ALL_APART) as server:
        assert send(f"{server.url}/v1/chat/completions", CHAT).status == 200  # so that templates are rendered, too
        remains = Remains(server)
        asyncio.run(act(server))
        remains.wait_gone()
        assert server.wait() == -signal.SIGKILL
    (left,) = set(run_directories(temporary)) - set(before)
    with null_server(null_model, topology=ALL_APART) as server:
        assert left not in run_directories(temporary)
        server.terminate()
        assert server.wait() == 0
    assert run_directories(temporary) == before
