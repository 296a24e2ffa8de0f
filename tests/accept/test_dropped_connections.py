"""A thousand clients leave at random points: nothing of them is left two steps and 100 ms later. `make accept`."""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.request
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from callboard.bench.machine import describe_machine
from callboard.bench.server_process import ServerProcess

pytestmark = [pytest.mark.accept, pytest.mark.timeout(1200)]

NUM_CONNECTIONS = 1000
AT_ONCE = 50
GRACE_S = 0.1
GRACE_STEPS = 2


class Residue(msgspec.Struct, frozen=True):
    """What requests hold in the engine and in the server."""

    blocks: float
    running: float
    waiting: float
    live: float
    tasks: float


def read_metrics(url: str) -> tuple[float, Residue]:
    """(steps so far, what is held now)"""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        families = text_string_to_metric_families(response.read().decode())
    values = {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}
    return values["callboard:steps_total"], Residue(
        values["callboard:kv_blocks"] - values["callboard:kv_blocks_free"],
        values["callboard:num_requests_running"],
        values["callboard:num_requests_waiting"],
        values["callboard:frontend_live_requests"],
        values["callboard:asyncio_tasks"],
    )


def request_of(draw: random.Random) -> bytes:
    """A request that would run for long: chat or completion, streaming or not, one choice or several."""
    fields: dict[str, object] = {"max_tokens": 2000, "ignore_eos": True, "stream": draw.random() < 0.5}
    if draw.random() < 0.3:
        fields["n"] = draw.randint(2, 4)
    if draw.random() < 0.5:
        path, fields["prompt"] = "/v1/completions", "x" * draw.randint(1, 400)
    else:
        path, fields["messages"] = "/v1/chat/completions", [{"role": "user", "content": "x" * draw.randint(1, 400)}]
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def drop_one(host: str, port: int, draw: random.Random) -> str:
    """Open a connection, leave it at a random point; returns where."""
    reader, writer = await asyncio.open_connection(host, port)
    request = request_of(draw)
    point = draw.choice(["in the request", "at once", "later", "in the answer", "after a reset"])
    try:
        if point == "in the request":
            writer.write(request[: draw.randrange(len(request))])
            await writer.drain()
        else:
            writer.write(request)
            if point in ("later", "after a reset"):
                await asyncio.sleep(draw.uniform(0, 0.3))  # the random point is a time
            elif point == "in the answer" and b'"stream": true' in request:
                for _ in range(draw.randint(1, 12)):
                    await reader.readline()
    finally:
        if point == "after a reset":
            writer.transport.abort()
        else:
            writer.close()
    return point


async def drop_all(url: str) -> Counter[str]:
    host, port = url.removeprefix("http://").split(":")
    draws = [random.Random(seed) for seed in range(NUM_CONNECTIONS)]
    points: Counter[str] = Counter()

    async def work() -> None:
        while draws:
            points[await drop_one(host, int(port), draws.pop())] += 1

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return points


def wait_baseline(url: str, baseline: Residue) -> tuple[float, float]:
    """(seconds, steps) until nothing more is held than at the baseline; what is held at the end of a minute fails."""
    begun = time.monotonic()
    first_steps, held = read_metrics(url)
    while time.monotonic() - begun < 60:
        seconds = time.monotonic() - begun
        steps, held = read_metrics(url)
        if held == baseline:
            return seconds, steps - first_steps
    raise AssertionError(f"after a minute {held} is held, at the start it was {baseline}")


def test_nothing_is_left_of_dropped_connections(tiny_llama_dir: Path) -> None:
    """Steps are counted by `callboard:steps_total`. Whoever is slower than the grace must not have had more steps.

    When the last request has left, the engine has nothing to do and steps no more, so the time of two steps is taken
    from the run itself.
    """
    with ServerProcess(str(tiny_llama_dir), "--set", "scheduler.max_num_seqs=64") as server:
        asyncio.run(drop_all(server.url))  # a first round warms up and is not measured
        wait_idle(server.url)
        _, baseline = read_metrics(server.url)
        for _ in range(3):
            first_steps, _ = read_metrics(server.url)
            begun = time.monotonic()
            points = asyncio.run(drop_all(server.url))
            wall_s = time.monotonic() - begun
            seconds, steps = wait_baseline(server.url, baseline)
            last_steps, _ = read_metrics(server.url)
            step_s = wall_s / (last_steps - first_steps)
            print(
                f"\n{describe_machine()}\n{points.total()} connections dropped {dict(points)} in {wall_s:.1f} s; "
                f"baseline {baseline} again after {seconds * 1e3:.0f} ms and {steps:.0f} steps of {step_s * 1e3:.1f} ms"
            )
            assert points.total() == NUM_CONNECTIONS
            assert len(points) == 5
            assert steps <= GRACE_STEPS + GRACE_S / step_s
            assert seconds <= GRACE_STEPS * step_s + GRACE_S


def wait_idle(url: str) -> None:
    """Until no request is left and the number of tasks stays the same."""
    last = None
    while True:
        _, held = read_metrics(url)
        if held == last and held.blocks == held.running == held.waiting == held.live == 0:
            return
        last = held
        time.sleep(0.2)  # between two looks
