"""Stop, drain, deaths of processes: what clients see, and that nothing is left running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent


class Client:
    """A raw SSE client that notes how a stream ends."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url, session
        self.num_begun = 0
        self.begun = asyncio.Condition()

    async def stream(self, max_tokens: int) -> str:
        """The last finish_reason, or the error's type; with `+done` if the stream ended with [DONE]."""
        body = {
            "prompt": [500, 600, 700],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        end, has_begun = "cut off", False
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            if response.status != 200:
                return f"HTTP {response.status}"
            async for line in response.content:
                if line.strip() == b"data: [DONE]":
                    end += "+done"
                elif line.startswith(b"data: "):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        end = chunk["error"]["type"]
                    for choice in chunk.get("choices", ()):
                        end = choice["finish_reason"] or end
                    if not has_begun:
                        has_begun = True
                        async with self.begun:
                            self.num_begun += 1
                            self.begun.notify_all()
        return end

    async def wait_begun(self, count: int) -> None:
        async with self.begun:
            await self.begun.wait_for(lambda: self.num_begun >= count)


async def run_and(server: ServerProcess, num_streams: int, max_tokens: int, act: object) -> list[str]:
    """Start streams, call `act()` when all have begun, return how each ended."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        client = Client(server.url, session)
        streams = [asyncio.create_task(client.stream(max_tokens)) for _ in range(num_streams)]
        await client.wait_begun(num_streams)
        act()  # type: ignore[operator]
        return await asyncio.gather(*streams)


def test_sigterm_lets_running_streams_finish(smollm2_gguf: Path) -> None:
    with ServerProcess(str(smollm2_gguf), "--set", "server.drain_timeout_s=600") as server:
        ends = asyncio.run(run_and(server, 8, 150, server.terminate))
        assert ends == ["length+done"] * 8
        assert server.wait() == 0
        assert server.children() == []


def test_sigterm_to_the_whole_group_drains_too(smollm2_gguf: Path) -> None:
    """Service managers signal every process of a service: only the supervisor acts on it."""

    def terminate_all() -> None:
        for pid in (*server.children(), server.pid):
            os.kill(pid, signal.SIGTERM)

    with ServerProcess(str(smollm2_gguf), "--set", "server.drain_timeout_s=600") as server:
        ends = asyncio.run(run_and(server, 2, 50, terminate_all))
        assert ends == ["length+done"] * 2
        assert server.wait() == 0


def test_new_requests_are_refused_while_it_drains(smollm2_gguf: Path) -> None:
    async def refused(server: ServerProcess) -> tuple[list[str], int, int]:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            client = Client(server.url, session)
            running = asyncio.create_task(client.stream(600))
            await client.wait_begun(1)
            server.terminate()
            status = 200
            while status == 200:
                async with session.get(f"{server.url}/ready") as response:
                    status = response.status
            late = await client.stream(5)
            server.terminate()  # the second one stops at once
            return [await running], status, int(late.removeprefix("HTTP "))

    with ServerProcess(str(smollm2_gguf), "--set", "server.drain_timeout_s=600") as server:
        ends, ready_status, late_status = asyncio.run(refused(server))
        assert server.wait() == 0
    assert (ready_status, late_status) == (503, 503)
    assert ends == ["abort+done"], "the second SIGTERM ends what still runs with a terminal event"


def test_a_deadline_of_zero_ends_streams_at_once(smollm2_gguf: Path) -> None:
    with ServerProcess(str(smollm2_gguf), "--set", "server.drain_timeout_s=0") as server:
        ends = asyncio.run(run_and(server, 8, 4000, server.terminate))
        assert ends == ["abort+done"] * 8
        assert server.wait() == 0


@pytest.mark.parametrize("victim", ["scheduler", "tokenizer"])
def test_the_death_of_another_actor_ends_streams_with_an_error_and_the_engine_with_a_reason(
    smollm2_gguf: Path, victim: str
) -> None:
    topology = str(ROOT / "examples" / "all_apart.toml")
    with ServerProcess(str(smollm2_gguf), "--topology", topology) as server:
        pid = server.pid_of(victim)
        ends = asyncio.run(run_and(server, 4, 4000, lambda: os.kill(pid, signal.SIGKILL)))
        assert ends == ["server_error+done"] * 4
        assert server.wait() == 1
        assert server.children() == []
        assert f"process {victim} died (SIGKILL)" in server.log()


def test_a_worker_that_keeps_dying_ends_the_engine_with_a_reason(smollm2_gguf: Path) -> None:
    with ServerProcess(str(smollm2_gguf), "--set", "process.worker.restart.max=1") as server:

        async def kill_each_worker() -> list[str]:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
                client = Client(server.url, session)
                stream = asyncio.create_task(client.stream(4000))
                await client.wait_begun(1)
                first = server.pid_of("worker")
                os.kill(first, signal.SIGKILL)
                while (second := await asyncio.to_thread(server.pid_of, "worker")) == first:
                    await asyncio.sleep(0.05)
                os.kill(second, signal.SIGKILL)
                return [await stream]

        ends = asyncio.run(kill_each_worker())
        assert ends == ["server_error+done"]
        assert server.wait() == 1
        assert "restart.max = 1" in server.log()
        assert server.children() == []


def test_two_engines_do_not_disturb_each_other(smollm2_gguf: Path) -> None:
    topology = str(ROOT / "examples" / "all_apart.toml")
    with ServerProcess(str(smollm2_gguf), "--topology", topology) as one:
        with ServerProcess(str(smollm2_gguf), "--topology", topology) as two:
            ends = asyncio.run(run_and(one, 4, 100, lambda: os.kill(two.pid, signal.SIGKILL)))
            assert ends == ["length+done"] * 4
        one.terminate()
        assert one.wait() == 0
