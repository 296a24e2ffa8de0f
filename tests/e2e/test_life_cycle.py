"""Stop and death with a real model; `test_cases_*.py` say more of them, with the null device."""

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


@pytest.mark.nightly
def test_sigterm_lets_running_streams_finish(smollm2_gguf: Path) -> None:
    with ServerProcess(str(smollm2_gguf), "--set", "server.drain_timeout_s=600") as server:
        ends = asyncio.run(run_and(server, 8, 60, server.terminate))
        assert ends == ["length+done"] * 8
        assert server.wait() == 0
        assert server.children() == []


@pytest.mark.nightly
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
