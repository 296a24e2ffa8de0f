"""Real processes, real SIGKILL: whichever actor dies, streams go on and say what they would have said."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from callboard.actors.launch import Launch, prepare_launch
from callboard.actors.supervisor import Supervisor
from callboard.shm_queue import Phase
from callboard.tests.actors.test_engine_life import SETTINGS, complete, descriptors, live, pids, restarted, serve
from callboard.topology import load_topology

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEVER = dict(max_tokens=400, stop=["\x00\x01"])
"""The tokenizer holds a stop string's state for the whole answer."""
PROCESSES = ("frontend", "tokenizer", "scheduler", "worker")


def apart(folder: Path, *more: str) -> Launch:
    """Every actor in a process of its own; no restart is one too many."""
    unlimited = [f"process.{name}.restart.{field}" for name in PROCESSES for field in ("max=1000", "backoff_s=0")]
    return prepare_launch(
        load_topology(EXAMPLES / "all_apart.toml", [*SETTINGS, *unlimited, *more], source=str(folder))
    )


async def events(url: str, session: aiohttp.ClientSession, **changes: object) -> AsyncIterator[dict[str, object]]:
    """Events of a streaming request up to [DONE], which must come."""
    body = {"prompt": "the callboard", "temperature": 0, "ignore_eos": True, "stream": True, **NEVER, **changes}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return
                yield json.loads(data)
    raise AssertionError("the stream broke off")


class Answer:
    """A stream read in the background, and how far it is."""

    def __init__(self, url: str, session: aiohttp.ClientSession, **changes: object) -> None:
        self.text = ""
        self.error: object = None
        self.finish: object = None
        self.num_events = 0
        self._more = asyncio.Event()
        self.task = asyncio.ensure_future(self._read(url, session, changes))

    async def _read(self, url: str, session: aiohttp.ClientSession, changes: dict[str, object]) -> None:
        async for event in events(url, session, **changes):
            assert self.finish is None, "an event behind the finish"
            if "error" in event:
                self.error = event["error"]
            else:
                (choice,) = event["choices"]  # type: ignore[misc]
                self.text += choice["text"]
                self.finish = choice["finish_reason"]
            self.num_events += 1
            self._more.set()

    async def until(self, num_events: int) -> None:
        while self.num_events < num_events and not self.task.done():
            self._more.clear()
            await self._more.wait()


@pytest.mark.parametrize(
    "process", ["worker", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("tokenizer", "scheduler"))]
)
def test_streams_go_on_over_an_actors_deaths_and_nothing_leaks(tiny_llama_dir: Path, process: str) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        expected = await complete(supervisor.url, session, **NEVER)
        others = {name: pid for name, pid in pids(supervisor).items() if name != process}
        counts = None
        for incarnation in range(2, 5):
            answer = Answer(supervisor.url, session)
            await answer.until(20)
            os.kill(pids(supervisor)[process], signal.SIGKILL)
            await answer.task
            assert (answer.text, answer.finish, answer.error) == (expected["choices"][0]["text"], "length", None)  # type: ignore[index]
            await restarted(supervisor, process, incarnation)
            after = await complete(supervisor.url, session, **NEVER)
            assert after["choices"] == expected["choices"] and after["usage"] == expected["usage"]
            now = [descriptors(), *(descriptors(pid) for pid in others.values())]
            assert incarnation == 2 or now == counts
            counts = now
        assert {name: pid for name, pid in pids(supervisor).items() if name != process} == others
        assert await live(supervisor, session) == 0

    assert serve(apart(tiny_llama_dir), act) == 0


def test_the_schedulers_death_leaves_the_weights_loaded(tiny_llama_dir: Path) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        line = supervisor._crew.line("worker")
        loaded_ns = line.phase_times_ns()[Phase.LOADING]
        answer = Answer(supervisor.url, session)
        await answer.until(20)
        os.kill(pids(supervisor)["scheduler"], signal.SIGKILL)
        await answer.task
        assert answer.finish == "length" and line.phase_times_ns()[Phase.LOADING] == loaded_ns

    assert serve(apart(tiny_llama_dir), act) == 0


def test_all_but_the_frontend_die_at_once(tiny_llama_dir: Path) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        expected = await complete(supervisor.url, session, **NEVER)
        answer = Answer(supervisor.url, session)
        await answer.until(20)
        for process in ("worker", "tokenizer", "scheduler"):
            os.kill(pids(supervisor)[process], signal.SIGKILL)
        await answer.task
        assert (answer.text, answer.finish, answer.error) == (expected["choices"][0]["text"], "length", None)  # type: ignore[index]

    assert serve(apart(tiny_llama_dir), act) == 0


@pytest.mark.parametrize(
    "process", ["worker", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("tokenizer", "scheduler"))]
)
def test_a_process_that_is_stopped_is_killed_and_its_streams_go_on(tiny_llama_dir: Path, process: str) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        expected = await complete(supervisor.url, session, **NEVER)
        answer = Answer(supervisor.url, session)
        await answer.until(20)
        os.kill(pids(supervisor)[process], signal.SIGSTOP)
        await answer.task
        assert (answer.text, answer.finish, answer.error) == (expected["choices"][0]["text"], "length", None)  # type: ignore[index]
        assert supervisor._crew.children[process].incarnation == 2

    deadlines = ("supervision.step_deadline_s=2", "supervision.actor_deadline_s=2")
    assert serve(apart(tiny_llama_dir, *deadlines), act) == 0


def test_a_frontends_death_frees_what_it_held_and_the_port_answers_again(tiny_llama_dir: Path) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        answer = Answer(supervisor.url, session, max_tokens=100_000 // 256)
        await answer.until(5)
        os.kill(pids(supervisor)["frontend"], signal.SIGKILL)
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            await answer.task
        await restarted(supervisor, "frontend", 2)
        assert (await complete(supervisor.url, session))["status"] == 200
        while await live(supervisor, session):
            pass

    assert serve(apart(tiny_llama_dir), act) == 0


def test_too_many_deaths_end_the_engine_with_a_reason(tiny_llama_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        os.kill(pids(supervisor)["tokenizer"], signal.SIGKILL)
        await restarted(supervisor, "tokenizer", 2)
        answer = Answer(supervisor.url, session)
        await answer.until(5)
        os.kill(pids(supervisor)["tokenizer"], signal.SIGKILL)
        await answer.task
        assert answer.error["message"].startswith("process tokenizer died 2 times within 60 s (restart.max = 1)")  # type: ignore[index]

    assert serve(apart(tiny_llama_dir, "process.tokenizer.restart.max=1"), act) == 1
    assert "engine.failed" in capfd.readouterr().err


def test_the_control_process_dies_and_the_worker_keeps_its_weights(tiny_llama_dir: Path) -> None:
    from callboard.tests.actors.test_engine_life import launch

    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        expected = await complete(supervisor.url, session, **NEVER)
        worker = pids(supervisor)["worker"]
        os.kill(pids(supervisor)["control"], signal.SIGKILL)
        await restarted(supervisor, "control", 2)
        again = await complete(supervisor.url, session, **NEVER)
        assert again["choices"] == expected["choices"] and pids(supervisor)["worker"] == worker

    assert serve(launch(tiny_llama_dir), act) == 0
