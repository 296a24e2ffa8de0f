"""Metrics add up over requests of many kinds, through a whole engine: T01."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from callboard.tests.e2e.null_engine import (
    PATIENT,
    Answer,
    Oracle,
    clients,
    held,
    null_server,
    until_idle,
    until_live,
)

pytestmark = pytest.mark.slow

NUM_SEQS = 8


def read_all(url: str) -> dict[str, float]:
    """Every number of /metrics under its name and labels, without the prefix."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        lines = response.read().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("callboard:")]
    return {name.removeprefix("callboard:"): float(value) for name, value in pairs}


async def leave(*answers: Answer) -> None:
    for answer in answers:
        answer.task.cancel()
    await asyncio.gather(*(answer.task for answer in answers), return_exceptions=True)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_hundred_requests_of_many_kinds(null_model: Path, oracle: Oracle, path: str) -> None:
    """60 that end, 10 that leave in the queue, 10 in mid-stream, 10 that are refused, 5 of three choices, 5 of two
    prompts (of two choices in chat): a time to first token for each that got one, an end for each that was taken."""
    is_chat = "chat" in path

    def body(index: int, num_tokens: int, **more: Any) -> dict[str, Any]:
        made = oracle.body(index, num_tokens, **more)
        if is_chat:
            del made["prompt"]
            made["messages"] = [{"role": "user", "content": f"say {index}"}]
        return made

    async def act(url: str, worker: int) -> None:
        async with clients() as session:

            def send(**more: Any) -> Answer:
                return Answer(url, session, body(**more), path)

            normal = [send(index=i, num_tokens=5, stream=i % 2 == 0) for i in range(60)]
            two = {"n": 2} if is_chat else {"prompt": [oracle.prompt(900), oracle.prompt(901)]}
            several = [send(index=70 + i, num_tokens=4, n=3, stream=i % 2 == 0) for i in range(5)]
            several += [send(index=80 + i, num_tokens=4, stream=i % 2 == 0, **two) for i in range(5)]
            refused = [send(index=90 + i, num_tokens=-1, stream=i % 2 == 0) for i in range(10)]
            await asyncio.gather(*(answer.task for answer in (*normal, *several, *refused)))
            assert {answer.status for answer in refused} == {400}
            await until_idle(url)
            streams = [send(index=100 + i, num_tokens=20_000, stream=True) for i in range(NUM_SEQS)]
            await asyncio.gather(*(answer.begun.wait() for answer in streams))
            with held(worker):  # all places are taken, and nothing moves until those in the queue have left
                queued = [send(index=200 + i, num_tokens=5, stream=i % 2 == 0) for i in range(10)]
                await until_live(url, NUM_SEQS + len(queued))
                await leave(*queued)
                await until_live(url, NUM_SEQS)
            await leave(*streams)
            await until_idle(url)
            late = [send(index=300 + i, num_tokens=20_000, stream=True) for i in range(10 - NUM_SEQS)]
            await asyncio.gather(*(answer.begun.wait() for answer in late))
            await leave(*late)
        await until_idle(url)

    with null_server(null_model, f"scheduler.max_num_seqs={NUM_SEQS}", *PATIENT) as server:
        before = read_all(server.url)
        asyncio.run(act(server.url, server.pid_of("worker")))
        after = read_all(server.url)
    moved = {name: value - before.get(name, 0) for name, value in after.items()}
    with_token, ended = 60 + 10 + 10, 60 + 10
    assert moved["time_to_first_token_seconds_count"] == with_token
    reasons = {name.split('"')[1]: n for name, n in moved.items() if name.startswith("request_success_total")}
    assert {reason: n for reason, n in reasons.items() if n} == {"length": ended, "abort": 20}
    num_choices = 60 + 5 * 3 + 5 * 2
    assert moved["e2e_request_latency_seconds_count"] == moved["request_generation_tokens_count"] == ended
    assert moved["request_generation_tokens_sum"] == 60 * 5 + (5 * 3 + 5 * 2) * 4
    assert moved["request_time_per_output_token_seconds_count"] == num_choices
    assert moved["request_params_n_sum"] == 60 + 5 * 3 + 5 * (2 if is_chat else 1)
    http = {name: n for name, n in moved.items() if name.startswith("http_requests_total") and f'"{path}"' in name}
    by_status = {name.split('status="')[1][:3]: n for name, n in http.items()}
    assert by_status == {"200": ended, "400": 10, "499": 20}, "who closes behind the last byte did not leave early"
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "frontend_live_requests"):
        assert after[name] == 0
