"""The supervisor and its children as processes, with a tiny model: deaths, restarts, descriptors, ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from callboard.actors.child_starts import CommandStart
from callboard.actors.launch import Launch, prepare_launch
from callboard.actors.supervisor import Supervisor
from callboard.errors import StartFailed
from callboard.topology import topology_from

pytestmark = pytest.mark.slow

CHILD = (sys.executable, "-P", "-m", "callboard.cli.child")
RUNNING = "callboard:num_requests_running"
SETTINGS = (
    "server.port=0",
    "model.dtype=float32",
    "model.max_model_len=512",
    "process.worker.device=null",
    "process.worker.restart.max=100",
    "kv_cache.num_blocks=64",
)


def launch(folder: Path, *more: str) -> Launch:
    return prepare_launch(topology_from(str(folder), [*SETTINGS, *more]))


def descriptors(pid: int | str = "self") -> dict[str, int]:
    """Open descriptors of a process by kind; gc, for a page that an error's traceback refers to stays mapped."""
    gc.collect()
    counts: dict[str, int] = {}
    for path in Path("/proc", str(pid), "fd").iterdir():
        try:
            kind = os.readlink(path).split(":")[0]
        except OSError:
            continue
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def pids(supervisor: Supervisor) -> dict[str, int]:
    return {name: child.pid for name, child in supervisor._crew.children.items()}


def children() -> dict[int, str]:
    """pid -> state letter of this process's children, servers of other tests among them: Z is a zombie."""
    states = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            states[int(stat.parent.name)] = fields[0]
    return states


async def complete(url: str, session: aiohttp.ClientSession, **changes: object) -> dict[str, object]:
    body = {"prompt": "the callboard", "max_tokens": 8, "temperature": 0, "ignore_eos": True} | changes
    async with session.post(f"{url}/v1/completions", json=body) as response:
        return {"status": response.status, **await response.json()}


def text_of(answer: dict[str, object]) -> str:
    assert answer["status"] == 200, answer
    return answer["choices"][0]["text"]  # type: ignore[index]


async def restarted(supervisor: Supervisor, name: str, incarnation: int) -> None:
    """Wait until this incarnation is ready."""
    while (child := supervisor._crew.children[name]).incarnation < incarnation or not child.is_ready:
        supervisor._changed.clear()
        await supervisor._changed.wait()


Act = Callable[[Supervisor, aiohttp.ClientSession], Awaitable[None]]


def serve(launch: Launch, act: Act) -> int:
    """Start an engine, run `act`, stop it; the exit status."""

    async def main() -> int:
        supervisor = Supervisor(launch, CommandStart(CHILD))
        await supervisor.start()
        waiting = asyncio.ensure_future(supervisor.wait())
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
                await act(supervisor, session)
        except BaseException:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            raise
        supervisor.request_stop()
        return await waiting

    before, known = descriptors(), children().keys()
    status = asyncio.run(main())
    assert descriptors() == before, "the supervisor keeps no descriptor"
    assert children().keys() == known, "no child is left, alive or dead"
    return status


@pytest.mark.nightly
def test_answers_go_on_over_three_deaths_of_the_worker_and_no_descriptor_leaks(tiny_llama_dir: Path) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        expected = text_of(await complete(supervisor.url, session, max_tokens=400))
        control = pids(supervisor)["control"]
        counts = None
        for incarnation in range(2, 5):
            answer = asyncio.ensure_future(complete(supervisor.url, session, max_tokens=400))
            os.kill(pids(supervisor)["worker"], signal.SIGKILL)
            assert text_of(await answer) == expected
            await restarted(supervisor, "worker", incarnation)
            now = descriptors(), descriptors(control)
            assert counts is None or now == counts
            counts = now
            assert "Z" not in children().values()
        assert pids(supervisor)["control"] == control

    assert serve(launch(tiny_llama_dir), act) == 0


def test_a_worker_that_dies_while_the_engine_drains_is_restarted_and_the_stream_finishes(tiny_llama_dir: Path) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        expected = text_of(await complete(supervisor.url, session, max_tokens=400))
        answer = asyncio.ensure_future(complete(supervisor.url, session, max_tokens=400))
        while await live(supervisor, session) == 0:
            pass
        worker = pids(supervisor)["worker"]
        os.kill(worker, signal.SIGSTOP)
        supervisor.request_stop()
        os.kill(worker, signal.SIGKILL)
        assert text_of(await answer) == expected

    assert serve(launch(tiny_llama_dir, "server.drain_timeout_s=600"), act) == 0


async def live(supervisor: Supervisor, session: aiohttp.ClientSession) -> int:
    async with session.get(f"{supervisor.url}/metrics") as response:
        page = await response.text()
    return int(float(next(x for x in page.splitlines() if x.startswith(RUNNING)).split()[-1]))


def test_the_death_of_the_frontends_process_while_it_drains_ends_the_engine(tiny_llama_dir: Path) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        control = pids(supervisor)["control"]
        os.kill(control, signal.SIGSTOP)  # it will never answer the drain
        supervisor.request_stop()
        os.kill(control, signal.SIGKILL)

    assert serve(launch(tiny_llama_dir, "server.drain_timeout_s=600"), act) == 1


def test_a_child_that_hangs_is_killed_at_the_stop(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.supervisor._STOP_TIMEOUT_S", 0.1)

    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        os.kill(pids(supervisor)["worker"], signal.SIGSTOP)

    assert serve(launch(tiny_llama_dir), act) == 0


def test_a_process_that_hangs_does_not_keep_the_engine(tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.supervisor._DRAIN_GRACE_S", 0.2)
    monkeypatch.setattr("callboard.actors.supervisor._STOP_TIMEOUT_S", 0.2)

    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        for child in supervisor._crew.children.values():
            os.kill(child.pid, signal.SIGSTOP)
        supervisor.request_stop()  # with 30 s to drain; the second request, by `serve`, takes them away

    assert serve(launch(tiny_llama_dir), act) == 1


@pytest.mark.parametrize("moment", ["before", "loading"])
def test_a_stop_during_the_start_leaves_nothing(tiny_llama_dir: Path, moment: str) -> None:
    ready = launch(tiny_llama_dir)

    async def main() -> None:
        supervisor = Supervisor(ready, CommandStart(CHILD))
        if moment == "before":
            supervisor.request_stop()
        else:
            asyncio.get_running_loop().call_later(0.3, supervisor.request_stop)
        with pytest.raises(StartFailed, match="stopped by a signal"):
            await supervisor.start()

    before, known = descriptors(), children().keys()
    asyncio.run(main())
    assert descriptors() == before and children().keys() == known


def test_a_child_that_fails_to_start_says_why(tiny_llama_dir: Path, tmp_path: Path) -> None:
    for file in tiny_llama_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ready = launch(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")

    async def main() -> None:
        with pytest.raises(StartFailed, match="tokenizer"):
            await Supervisor(ready, CommandStart(CHILD)).start()

    before, known = descriptors(), children().keys()
    asyncio.run(main())
    assert descriptors() == before and children().keys() == known


def test_a_fault_of_the_supervisor_itself_is_raised_and_leaves_nothing(tiny_llama_dir: Path) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        def broken(child: object) -> None:
            raise RuntimeError("broken restart")

        supervisor._replace = broken  # type: ignore[method-assign]
        os.kill(pids(supervisor)["worker"], signal.SIGKILL)
        await supervisor._faults._happened.wait()

    known = children().keys()
    with pytest.raises(RuntimeError, match="broken restart"):
        serve(launch(tiny_llama_dir), act)
    assert children().keys() == known
