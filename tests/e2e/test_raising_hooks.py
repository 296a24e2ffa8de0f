"""One of 64 requests raises, in each place in turn: it alone ends with an error, the others say what they would."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from callboard.actors.child_starts import CommandStart
from callboard.actors.supervisor import Supervisor
from callboard.tests.actors.test_engine_life import launch
from callboard.tests.e2e.raising_child import PLACES, PLANTED_LENGTH, PLANTED_TOP, seed_of

pytestmark = pytest.mark.slow

CHILD = (sys.executable, "-P", str(Path(__file__).with_name("raising_child.py")))
NUM_REQUESTS = 64
NEAR_TIE = 1e-4
"""Natural log. The model's float32 differs between batches by less than a hundredth of that."""

Body = dict[str, Any]


def body_of(index: int) -> Body:
    return {
        "prompt": f"{index} the callboard " * (1 + index % 5),
        "max_tokens": 8 + index % 9,
        "ignore_eos": True,
        "temperature": index % 2,
        "seed": index,
        "logprobs": 2,
        "stop": ["\x00", "\x01\x02"] if index % 3 else None,
        "presence_penalty": 1.0 if index % 4 == 0 else None,
        "prompt_logprobs": 1 if index % 8 == 7 else None,
    }


def poisoned(place: str) -> tuple[str, Body]:
    """(endpoint, body) of the request that raises there."""
    body = body_of(0) | {"seed": seed_of(place), "temperature": 1.0}
    if place == "template":
        messages = [{"role": "user", "content": "planted in template"}]
        return "chat/completions", {"messages": messages, "max_tokens": 4}
    if place == "format":
        body["max_tokens"] = PLANTED_LENGTH
    if place == "prompt logprobs":
        body["prompt_logprobs"] = PLANTED_TOP
    if place == "stop strings":
        body["stop"] = ["planted in stop strings"]
    return "completions", body


async def post(session: aiohttp.ClientSession, url: str, endpoint: str, body: Body) -> tuple[int, Any]:
    async with session.post(f"{url}/v1/{endpoint}", json=body) as response:
        return response.status, await response.json()


def same(answer: Any, other: Any, is_greedy: bool) -> bool:
    """The same tokens and usage; a greedy answer may part from the other where two tokens tie but for rounding."""
    (choice,), (right,) = answer["choices"], other["choices"]
    if choice["text"] == right["text"] and choice["finish_reason"] == right["finish_reason"]:
        return bool(answer["usage"]["completion_tokens"] == other["usage"]["completion_tokens"])
    tokens, right_tokens = choice["logprobs"]["tokens"], right["logprobs"]["tokens"]
    pairs = enumerate(zip(tokens, right_tokens, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), None)
    if first is None or not is_greedy:
        return False
    best = sorted(right["logprobs"]["top_logprobs"][first].values(), reverse=True)
    return len(best) > 1 and math.fabs(best[0] - best[1]) < NEAR_TIE


def test_one_of_64_raises_in_each_place_in_turn(tiny_llama_dir: Path) -> None:
    async def main() -> int:
        supervisor = Supervisor(
            launch(tiny_llama_dir, "kv_cache.num_blocks=512", "process.worker.device=cpu", "process.worker.threads=1"),
            CommandStart(CHILD),
        )
        await supervisor.start()
        waiting = asyncio.ensure_future(supervisor.wait())
        try:
            timeout = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
                await ask_all(supervisor, session)
        finally:
            supervisor.request_stop()
        return await waiting

    async def ask_all(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        url = supervisor.url
        bodies = [body_of(index) for index in range(1, NUM_REQUESTS)]
        expected = await asyncio.gather(*(post(session, url, "completions", body) for body in bodies))
        assert {status for status, _ in expected} == {200}
        worker = supervisor._crew.children["worker"].pid
        for place in PLACES:
            endpoint, poison = poisoned(place)
            requests = [post(session, url, "completions", body) for body in bodies]
            requests.insert(NUM_REQUESTS // 2, post(session, url, endpoint, poison))
            answers = await asyncio.gather(*requests)
            status, error = answers.pop(NUM_REQUESTS // 2)
            assert status == 500 and error["error"]["type"] == "server_error", (place, status, error)
            for body, (status, answer), (_, right) in zip(bodies, answers, expected, strict=True):
                assert status == 200, (place, answer)
                assert same(answer, right, body["temperature"] == 0), (place, answer, right)
        assert supervisor._crew.children["worker"].pid == worker, "no process had to die for it"

    assert asyncio.run(main()) == 0
