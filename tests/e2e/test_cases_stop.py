"""Stopping under load: every stream that was accepted ends with a terminal event, and the engine's end leaves nothing.

Requests are kept under way by a worker that stands still, so each signal comes while all of them run.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
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
    descendants,
    get,
    held,
    null_server,
    successor_held,
    until_idle,
    until_live,
)

pytestmark = pytest.mark.slow

NUM_TOKENS = 200
MESSAGES = [{"role": "user", "content": "x"}]
BODIES = 10


def mixed(oracle: Oracle, num_tokens: int) -> list[tuple[str, dict[str, object]]]:
    """(path, body): both endpoints, streamed and not, one choice and two."""
    requests = []
    for index in range(BODIES):
        body = oracle.body(index, num_tokens, stream=index % 2 == 0, n=2 if index in (2, 3) else 1)
        path = "/v1/completions"
        if index in (4, 5):
            del body["prompt"]
            body["messages"], path = MESSAGES, "/v1/chat/completions"
        requests.append((path, body))
    return requests


@pytest.mark.parametrize(
    ("drain_s", "signals", "ends"),
    [
        (600, [signal.SIGTERM], {"length", "length,length"}),
        (600, [signal.SIGTERM, signal.SIGINT], {"abort", "abort,abort"}),
        (0, [signal.SIGINT], {"abort", "abort,abort"}),
        pytest.param(1, [signal.SIGTERM], {"abort", "abort,abort"}, marks=pytest.mark.nightly),
        pytest.param(
            600, [signal.SIGINT, signal.SIGTERM, signal.SIGTERM], {"abort", "abort,abort"}, marks=pytest.mark.nightly
        ),
    ],
    ids=["in-time", "second-signal", "at-once", "deadline", "third-signal"],
)
def test_what_runs_ends_and_what_comes_is_refused(
    null_model: Path, oracle: Oracle, drain_s: int, signals: list[signal.Signals], ends: set[str]
) -> None:
    async def act(server: ServerProcess) -> list[Answer]:
        async with clients() as session:
            with held(server.pid_of("worker")):
                answers = [Answer(server.url, session, body, path) for path, body in mixed(oracle, NUM_TOKENS)]
                await until_live(server.url, BODIES + 2)
                is_drain = drain_s == 600 and len(signals) == 1
                server.process.send_signal(signals[0])
                if drain_s == 600:
                    while get(f"{server.url}/ready")[0] == 200:
                        pass
                    late = Answer(server.url, session, oracle.body(99, 1))
                    await late.task
                    assert (late.status, late.retry_after) == (503, "1") and late.error
                    assert get(f"{server.url}/health")[0] == 200, "who drains, lives"
                for number in signals[1:]:
                    server.process.send_signal(number)
                if not is_drain:  # what is ended at once or at the deadline needs no worker
                    await asyncio.gather(*(answer.task for answer in answers))
            await asyncio.gather(*(answer.task for answer in answers))
            return answers

    with null_server(null_model, f"server.drain_timeout_s={drain_s}", *PATIENT) as server:
        remains = Remains(server)
        answers = asyncio.run(act(server))
        assert server.wait() == 0
        remains.wait_gone()
    assert {answer.end for answer in answers} <= ends
    assert all(answer.has_terminal for answer in answers), [answer.end for answer in answers]
    if ends == {"length", "length,length"}:
        for index, ((path, body), answer) in enumerate(zip(mixed(oracle, NUM_TOKENS), answers, strict=True)):
            if path == "/v1/completions":
                assert answer.texts == oracle.texts(index, NUM_TOKENS, body["n"])  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_a_signal_to_every_process_is_a_drain_too(
    null_model: Path, oracle: Oracle, send: Callable[..., Any], number: signal.Signals
) -> None:
    """Terminals and service managers signal all processes of a service: only the supervisor acts on it."""

    async def act(server: ServerProcess) -> list[Answer]:
        async with clients() as session:
            with held(server.pid_of("worker")):
                answers = [Answer(server.url, session, body, path) for path, body in mixed(oracle, NUM_TOKENS)]
                await until_live(server.url, BODIES + 2)
                for pid in reversed(descendants(server.pid)):
                    os.kill(pid, number)
            await asyncio.gather(*(answer.task for answer in answers))
            return answers

    with null_server(null_model, "server.drain_timeout_s=600", *PATIENT) as server:
        chat = {"messages": MESSAGES, "max_tokens": 1}
        assert send(f"{server.url}/v1/chat/completions", chat).status == 200  # templates have a process of their own
        answers = asyncio.run(act(server))
        assert server.wait() == 0
        assert "Traceback" not in server.log()
    assert {answer.end for answer in answers} == {"length", "length,length"}
    assert all(answer.has_terminal for answer in answers)


@pytest.mark.nightly
@pytest.mark.parametrize("process", ["tokenizer", "scheduler", "worker"])
def test_a_deadline_that_passes_while_a_process_is_away_ends_streams_too(
    null_model: Path, oracle: Oracle, process: str
) -> None:
    async def act(server: ServerProcess) -> list[Answer]:
        async with clients() as session:
            requests = [(path, {**body, "max_tokens": 15_000}) for path, body in mixed(oracle, NUM_TOKENS)]
            answers = [Answer(server.url, session, body, path) for path, body in requests]
            await asyncio.gather(*(answers[index].begun.wait() for index in range(0, BODIES, 2)))
            async with successor_held(server, process):
                server.terminate()
                await asyncio.gather(*(answer.task for answer in answers))
            return answers

    with null_server(null_model, "server.drain_timeout_s=1", *UNLIMITED, *PATIENT, topology=ALL_APART) as server:
        remains = Remains(server)
        answers = asyncio.run(act(server))
        assert server.wait() == 0
        remains.wait_gone()
    assert all(answer.has_terminal for answer in answers), [answer.end for answer in answers]


@pytest.mark.parametrize(
    "num_ended",
    [45, *(pytest.param(ended, marks=pytest.mark.nightly) for ended in (1, *range(2, 50, 2)))],
)
def test_a_drain_that_begins_while_streams_end_cuts_none_of_them(
    null_model: Path, oracle: Oracle, num_ended: int
) -> None:
    lengths = [20 + 5 * index for index in range(50)]

    async def act(server: ServerProcess) -> list[Answer]:
        async with clients() as session:
            with held(server.pid_of("worker")):
                answers = [
                    Answer(server.url, session, oracle.body(index, length, stream=True))
                    for index, length in enumerate(lengths)
                ]
                await until_live(server.url, len(lengths))
            pending = {answer.task for answer in answers}
            while len(pending) > len(lengths) - num_ended:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            server.terminate()
            if pending:
                await asyncio.wait(pending)
            return answers

    with null_server(null_model, "server.drain_timeout_s=600", *PATIENT) as server:
        answers = asyncio.run(act(server))
        assert server.wait() == 0
    for index, (length, answer) in enumerate(zip(lengths, answers, strict=True)):
        assert answer.end == "length" and answer.has_terminal
        assert answer.texts == oracle.texts(index, length)


CLIENT = """
import asyncio, sys
from callboard import AsyncClient
from callboard.errors import CallboardError

async def main(url, num_streams, num_begun):
    ends, begun, enough = [], 0, asyncio.Event()

    async def read(client, index):
        nonlocal begun
        try:
            async for _ in client.complete([300 + index, 7, 8], max_tokens=30_000, temperature=0, ignore_eos=True):
                begun += 1
                if begun >= num_begun:
                    enough.set()
        except CallboardError as error:
            ends.append(type(error).__name__)

    client = AsyncClient(url)
    tasks = [asyncio.create_task(read(client, index)) for index in range(num_streams)]
    if num_begun:
        await enough.wait()
    else:
        await asyncio.sleep(0)
    await client.close()
    await asyncio.gather(*tasks)
    print(len(ends), *sorted(set(ends)))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def close_at_once(url: str, num_streams: int, num_begun: int) -> None:
    """A process that opens streams, closes its client after `num_begun` chunks in all, and ends."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", CLIENT, url, str(num_streams), str(num_begun)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert re.fullmatch(rf"{num_streams}( \w+)+\n", done.stdout), done.stdout


@pytest.mark.parametrize("num_rounds", [1, pytest.param(10, marks=pytest.mark.nightly)])
def test_a_client_closed_in_the_middle_of_100_streams_ends_and_so_do_they(null_model: Path, num_rounds: int) -> None:
    with null_server(null_model) as server:
        for _ in range(num_rounds):
            for num_begun in (0, 1, 150) if num_rounds > 1 else (1,):
                close_at_once(server.url, 100, num_begun)
                asyncio.run(until_idle(server.url))
        server.terminate()
        assert server.wait() == 0
        assert "Traceback" not in server.log()
