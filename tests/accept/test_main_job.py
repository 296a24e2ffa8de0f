"""The timed points of the main job: `make accept`. Each prints its figures and the machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import time
from pathlib import Path

import aiohttp
import pytest

from callboard.bench.decode import compare
from callboard.bench.load import run_load
from callboard.bench.machine import describe_machine
from callboard.bench.overlap import measure
from callboard.bench.server_process import ServerProcess

pytestmark = [pytest.mark.accept, pytest.mark.timeout(1200)]

VOCAB = 40_000


def test_rate_at_16_streams_is_at_least_4_times_that_of_one(smollm2_gguf: Path) -> None:
    print(f"\n{describe_machine()}")
    ratios = []
    with ServerProcess(str(smollm2_gguf)) as server:
        for pair in range(6):
            rate = {}
            for concurrency in (1, 16):
                report = asyncio.run(
                    run_load(
                        server.url,
                        concurrency=concurrency,
                        num_requests=concurrency,
                        input_len=128,
                        output_len=128,
                        vocab_size=VOCAB,
                        seed=100 * pair + concurrency,
                    )
                )
                rate[concurrency] = report.output_tokens_per_s
                print(f"{'warm-up' if pair == 0 else f'pair {pair}'} c={concurrency:2}: {report.line()}")
            if pair:
                ratios.append(rate[16] / rate[1])
    print(f"ratio 16 : 1 median {statistics.median(ratios):.2f} of {[round(r, 2) for r in sorted(ratios)]}")
    assert statistics.median(ratios) >= 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tpot_at_one_stream_is_no_worse_than_transformers(smollm2_gguf: Path, dtype: str) -> None:
    pairs = compare(str(smollm2_gguf), dtype, 5, 128, 64)
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    ours, theirs = (statistics.median(values) * 1e3 for values in zip(*pairs, strict=True))
    print(f"\n{describe_machine()}")
    print(f"{dtype}: Callboard {ours:.2f} ms, transformers {theirs:.2f} ms, ratios {[round(r, 2) for r in ratios]}")
    assert statistics.median(ratios) <= 1


def test_plans_are_published_before_the_step_before_ends(smollm2_gguf: Path) -> None:
    for depth in (2, 3):
        overlapped, steady = measure(str(smollm2_gguf), depth, 4, 200)
        print(f"\ndepth {depth}: {overlapped} of {steady} steady steps overlapped ({overlapped / steady:.1%})")
        assert steady >= 100
        assert overlapped / steady >= 0.95


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_an_idle_engine_uses_under_1_percent_of_a_core(smollm2_gguf: Path) -> None:
    with ServerProcess(str(smollm2_gguf)) as server:
        asyncio.run(run_load(server.url, concurrency=4, num_requests=4, input_len=32, output_len=32, vocab_size=VOCAB))
        pids = [server.pid, *server.children()]
        time.sleep(2)  # the measurement is of a stretch of idle time, so it waits on purpose
        before, started = cpu_seconds(pids), time.monotonic()
        time.sleep(30)
        share = (cpu_seconds(pids) - before) / (time.monotonic() - started)
    print(f"\nidle: {share:.3%} of a core over 30 s, {len(pids)} processes")
    assert len(pids) == 3
    assert share < 0.01


async def _stream_to_the_end(session: aiohttp.ClientSession, url: str, started: asyncio.Semaphore) -> str:
    """How one endless stream ended: its last finish_reason or error type, and whether [DONE] came."""
    body = {"prompt": [500, 600, 700], "max_tokens": 4000, "ignore_eos": True, "temperature": 0, "stream": True}
    end, has_done, has_begun = "nothing", False, False
    async with session.post(f"{url}/v1/completions", json=body) as response:
        async for line in response.content:
            if line.strip() == b"data: [DONE]":
                has_done = True
            elif line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    end = chunk["error"]["type"]
                for choice in chunk.get("choices", ()):
                    end = choice["finish_reason"] or end
                if not has_begun:
                    has_begun = True
                    started.release()
    return f"{end}{'+done' if has_done else ''}"


def test_sigterm_under_load_ends_every_stream_with_a_terminal_event(smollm2_gguf: Path) -> None:
    async def run(server: ServerProcess) -> list[str]:
        started = asyncio.Semaphore(0)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            streams = [asyncio.create_task(_stream_to_the_end(session, server.url, started)) for _ in range(32)]
            for _ in streams:
                await started.acquire()
            server.terminate()
            return await asyncio.gather(*streams)

    for drain_s in (0, 2):
        with ServerProcess(str(smollm2_gguf), "--set", f"server.drain_timeout_s={drain_s}") as server:
            ends = asyncio.run(run(server))
            status = server.wait()
        print(f"\ndrain {drain_s} s: {len(ends)} streams ended as {sorted(set(ends))}, exit status {status}")
        assert set(ends) == {"abort+done"}
        assert status == 0


def test_a_killed_supervisor_leaves_no_process_behind(smollm2_gguf: Path) -> None:
    with ServerProcess(str(smollm2_gguf)) as server:
        children = server.children()
        pidfds = [os.pidfd_open(pid) for pid in children]
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(_is_alive(pid) for pid in children):
            time.sleep(0.05)
        left = [pid for pid in children if _is_alive(pid)]
        for fd in pidfds:
            os.close(fd)
    print(f"\nkill -9 of the supervisor: {len(children)} children, {len(left)} alive after 5 s")
    assert len(children) == 2
    assert left == []


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
