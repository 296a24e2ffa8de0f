"""Deadlines, tenants and ledgers through whole engines: what waits is held, so that nothing depends on speed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard.bench.overlap import read_counter
from callboard.bench.server_process import ServerProcess
from callboard.client import AsyncClient, RequestExplanation
from callboard.tests.e2e.null_engine import (
    ALL_APART,
    PATIENT,
    UNLIMITED,
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

RUNNING, WAITING = "callboard:num_requests_running", "callboard:num_requests_waiting"
PROMPT_TOKENS = "callboard:prompt_tokens_total"
LONG = 20_000
"""Tokens that take the null device some seconds."""
SETTINGS = (*PATIENT, "scheduler.max_num_seqs=1", "scheduler.policy=fair")


@pytest.fixture(scope="module")
def server(null_model: Path) -> Iterator[ServerProcess]:
    with null_server(null_model, *SETTINGS) as server:
        yield server
        server.terminate()
        assert server.wait() == 0


@pytest.fixture(scope="module")
def apart(null_model: Path) -> Iterator[ServerProcess]:
    """Each actor in a process of its own."""
    with null_server(null_model, *SETTINGS, *UNLIMITED, topology=ALL_APART) as server:
        yield server
        server.terminate()
        assert server.wait() == 0


async def counter(url: str, name: str) -> float:
    return await asyncio.to_thread(read_counter, url, name)


# Deadlines


def test_what_waits_too_long_ends_with_timeout_and_none_of_its_prompt_is_computed(
    server: ServerProcess, oracle: Oracle
) -> None:
    async def act() -> None:
        before = await counter(server.url, PROMPT_TOKENS)
        async with clients() as session:
            with held(server.pid_of("worker")):
                first = Answer(server.url, session, oracle.body(0, 50, stream=True))
                await until_gauge(server.url, RUNNING, 1)
                late = [
                    Answer(server.url, session, oracle.body(index, 50, deadline_ms=50, n=2, stream=bool(index % 2)))
                    for index in range(1, 5)
                ]
                await asyncio.gather(*(answer.task for answer in late))
                assert [answer.end for answer in late] == ["timeout,timeout"] * 4
                assert all(answer.status == 200 and answer.has_terminal for answer in late)
                assert [answer.texts for answer in late] == [{0: "", 1: ""}] * 4
                await until_live(server.url, 1)
            await first.task
            assert (first.texts, first.end) == (oracle.texts(0, 50), "length")
        await until_idle(server.url)
        assert await counter(server.url, PROMPT_TOKENS) - before == len(oracle.prompt(0))

    asyncio.run(act())


def test_the_usage_of_one_that_got_no_token_counts_its_prompt_alone(
    server: ServerProcess, oracle: Oracle, send: Callable[..., Any]
) -> None:
    with held(server.pid_of("worker")):
        answer = send(server.url + "/v1/completions", oracle.body(0, 50, deadline_ms=20))
    assert answer.json["choices"][0]["finish_reason"] == "timeout"
    usage = answer.json["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(oracle.prompt(0)), 0)


@pytest.mark.parametrize("streams", [True, False])
def test_what_runs_too_long_ends_with_what_it_has(server: ServerProcess, oracle: Oracle, streams: bool) -> None:
    async def act() -> None:
        async with clients() as session:
            body = oracle.body(1, LONG, deadline_ms=400, stream=streams, return_token_ids=True)
            answer = Answer(server.url, session, body)
            await answer.task
            assert (answer.status, answer.end, answer.has_terminal) == (200, "timeout", True)
            # The deadline may fall between the bytes of a character: what is there of it is told as U+FFFD.
            text = answer.texts[0].rstrip("\ufffd")
            assert text and oracle.texts(1, LONG)[0].startswith(text)
        await until_idle(server.url)

    asyncio.run(act())


def test_a_deadline_outlasts_the_scheduler_that_held_the_request(apart: ServerProcess, oracle: Oracle) -> None:
    async def act() -> None:
        async with clients() as session:
            with held(apart.pid_of("worker")):
                answers = [
                    Answer(apart.url, session, oracle.body(i, 50, deadline_ms=1_000, stream=True)) for i in (0, 1)
                ]
                await until_live(apart.url, 2)
                os.kill(apart.pid_of("scheduler"), signal.SIGKILL)
                await asyncio.gather(*(answer.task for answer in answers))
                assert [answer.end for answer in answers] == ["timeout"] * 2
            again = Answer(apart.url, session, oracle.body(2, 20))
            await again.task
            assert again.texts == oracle.texts(2, 20)
        await until_idle(apart.url)

    asyncio.run(act())


def test_a_deadline_is_kept_while_there_is_no_worker(apart: ServerProcess, oracle: Oracle) -> None:
    async def act() -> None:
        async with clients() as session:
            with held(apart.pid_of("tokenizer")):
                late = Answer(apart.url, session, oracle.body(0, 50, deadline_ms=1))
                await until_gauge(apart.url, "callboard:frontend_live_requests", 1)
            await late.task
            assert late.end == "timeout"
        await until_idle(apart.url)

    asyncio.run(act())


# Ledgers


def check_sums(told: RequestExplanation) -> None:
    """The parts of each choice follow one another without a gap."""
    for choice in told.choices:
        parts = (
            choice.receive_s, choice.tokenize_s, choice.waiting_s.total, choice.prefill_s, choice.decode_s,
            choice.deliver_s, choice.unknown_s,
        )  # fmt: skip
        assert all(part >= 0 for part in parts), choice
        assert sum(parts) == pytest.approx(choice.total_s, abs=1e-6)


def test_a_request_is_told_of_while_it_waits_and_runs_and_has_ended(server: ServerProcess, oracle: Oracle) -> None:
    async def act() -> None:
        async with AsyncClient(server.url) as client, clients() as session:
            with held(server.pid_of("worker")):
                first = Answer(server.url, session, oracle.body(0, 50))
                await until_gauge(server.url, RUNNING, 1)
                second = asyncio.ensure_future(
                    client.complete_whole(oracle.prompt(1), max_tokens=7, ignore_eos=True, request_id="second/1")
                )
                await until_gauge(server.url, WAITING, 1)
                waiting = await client.explain("second/1")
                assert (waiting.state, waiting.choices[0].state) == ("waiting", "waiting")
                assert waiting.choices[0].waits_for is not None
                assert waiting.choices[0].prompt_tokens == len(oracle.prompt(1))
                listed = {request.x_request_id: request for request in await client.requests()}
                assert len(listed) == 2 and listed["second/1"].id == waiting.id
            await first.task
            answer = await second
            assert await client.requests() == []
            told = await client.explain(answer.request_id)
            assert told == await client.explain("second/1"), "it has ended: nothing changes"
            (choice,) = told.choices
            assert (told.state, choice.finish_reason, choice.completion_tokens) == ("ended", "length", 7)
            assert choice.waiting_s.sequences > 0 and choice.decode_s > 0
            assert sum(choice.chunks) == len(oracle.prompt(1)) - choice.cached_tokens
            assert choice.total_s == pytest.approx(told.total_s, abs=1e-6)
            assert waiting.total_s < told.total_s
            for explanation in (waiting, told):
                check_sums(explanation)

    asyncio.run(act())


def test_prompts_and_choices_have_a_ledger_each(server: ServerProcess, oracle: Oracle) -> None:
    async def act() -> None:
        async with AsyncClient(server.url) as client:
            prompts = [oracle.prompt(index) * (index + 1) for index in range(3)]
            answer = await client.complete_whole(prompts, n=2, max_tokens=3, ignore_eos=True)
            told = await client.explain(answer.request_id)
            assert [choice.index for choice in told.choices] == list(range(6))
            assert [choice.prompt_tokens for choice in told.choices] == [4, 4, 8, 8, 12, 12]
            assert [choice.completion_tokens for choice in told.choices] == [3] * 6
            check_sums(told)

    asyncio.run(act())


def test_a_question_is_asked_again_when_the_scheduler_or_the_tokenizer_dies(
    apart: ServerProcess, oracle: Oracle
) -> None:
    """The actor is held when the question comes, so the question is lost with it."""

    async def act() -> None:
        async with AsyncClient(apart.url) as client, clients() as session:
            running = Answer(apart.url, session, oracle.body(0, LONG, stream=True))
            await running.begun.wait()
            (live,) = await client.requests()
            for process in ("scheduler", "tokenizer"):
                pid = apart.pid_of(process)
                with held(pid):
                    asked = asyncio.ensure_future(client.explain(live.id))
                    assert [request.id for request in await client.requests()] == [live.id]
                    os.kill(pid, signal.SIGKILL)
                told = await asked
                assert told.id == live.id
                check_sums(told)
            running.task.cancel()
        await until_idle(apart.url)

    asyncio.run(act())


# Tenants


@pytest.mark.nightly
def test_a_key_names_its_tenant_and_knows_its_requests(
    null_model: Path, oracle: Oracle, tmp_path: Path, send: Callable[..., Any]
) -> None:
    (tmp_path / "keys").write_text("one red\ntwo red\nthree blue\n")
    (tmp_path / "keys").chmod(0o600)
    with null_server(null_model, "scheduler.policy=fair", f"server.api_keys_file={tmp_path / 'keys'}") as server:
        headers = {name: {"Authorization": f"Bearer {name}"} for name in ("one", "two", "three")}
        url = server.url + "/v1/completions"
        answers = {name: send(url, oracle.body(0, 3, tenant="red"), headers=headers[name]) for name in headers}
        assert {name: answer.status for name, answer in answers.items()} == {"one": 200, "two": 200, "three": 400}
        path = f"{server.url}/v1/requests/{answers['one'].json['id']}"
        assert {name: send(path, headers=headers[name]).status for name in headers} == {
            "one": 200, "two": 200, "three": 404,
        }  # fmt: skip
        assert send(path).status == 401
