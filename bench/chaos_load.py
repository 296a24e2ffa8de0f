"""The load of a chaos run: requests of mixed kinds at random times, and what came of each."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence

import aiohttp
import msgspec

_TIMEOUT_S = 120.0


class ChaosRequest(msgspec.Struct, frozen=True):
    """One request and when it is sent, seconds after the start."""

    at_s: float
    body: dict[str, object]
    abort_after: int | None
    """Chunks after which the client leaves."""


class Choice(msgspec.Struct):
    """One answer as the client saw it."""

    text: str = ""
    tokens: list[str] = []
    gaps: list[float] = []
    """Between the two most likely tokens, natural log; where the answer had them."""
    finish: str | None = None


class Outcome(msgspec.Struct):
    """What came of one request. `error`: why it did not end, None if it did."""

    choices: list[Choice]
    sent_s: float
    ended_s: float = 0.0
    error: str | None = None
    is_dropped: bool = False
    """The connection broke."""


def make_requests(num_requests: int, rate: float, seed: int) -> list[ChaosRequest]:
    """Mixed kinds: stream or not, greedy or seeded, one choice or two, stop strings, clients that leave."""
    draw = random.Random(seed)
    requests = []
    at_s = 0.0
    for _ in range(num_requests):
        at_s += draw.expovariate(rate)
        body: dict[str, object] = {
            "prompt": "".join(draw.choice("abcdefgh ij") for _ in range(draw.randint(1, 100))),
            "max_tokens": draw.randint(1, 48),
            "ignore_eos": True,
            "seed": draw.randrange(1 << 32),
            "temperature": draw.choice((0, 0, 1.0)),
            "logprobs": 2,
            "stream": draw.random() < 0.7,
        }
        if draw.random() < 0.2:
            body["n"] = 2
        if draw.random() < 0.3:
            body["stop"] = [draw.choice("abcdefgh"), draw.choice("xyz")]
        is_left = body["stream"] and draw.random() < 0.1
        requests.append(ChaosRequest(at_s, body, draw.randint(1, 8) if is_left else None))
    return requests


class Client:
    """Sends requests at their times, each on a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/completions"
        self.outcomes: dict[int, Outcome] = {}
        self._begun_s = time.monotonic()

    async def run(self, requests: Sequence[ChaosRequest], hurry_after_s: float = math.inf) -> None:
        """All of them, those planned behind `hurry_after_s` four times as fast; returns when the last has ended."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
            self._begun_s = time.monotonic()
            for index, request in enumerate(requests):
                hurry_s = max(0.0, request.at_s - hurry_after_s)
                await asyncio.sleep(self._begun_s + request.at_s - hurry_s * 3 / 4 - time.monotonic())
                group.create_task(self._send(session, index, request))

    async def _send(self, session: aiohttp.ClientSession, index: int, request: ChaosRequest) -> None:
        num_choices = int(str(request.body.get("n", 1)))
        outcome = Outcome([Choice() for _ in range(num_choices)], time.monotonic())
        self.outcomes[index] = outcome
        try:
            async with session.post(self._url, json={"model": "chaos", **request.body}) as response:
                if response.status != 200:
                    outcome.error = f"status {response.status}: {(await response.text())[:200]}"
                elif request.body["stream"]:
                    await _read_stream(response, outcome, request.abort_after)
                else:
                    _take(outcome, await response.json())
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
            outcome.error, outcome.is_dropped = f"{type(error).__name__}: {error}", True
        except TimeoutError:
            outcome.error = f"no end within {_TIMEOUT_S:g} s"
        outcome.ended_s = time.monotonic()


async def _read_stream(response: aiohttp.ClientResponse, outcome: Outcome, abort_after: int | None) -> None:
    num_chunks = 0
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            if any(choice.finish is None for choice in outcome.choices) and outcome.error is None:
                outcome.error = "[DONE] before every choice had its finish"
            return
        chunk = json.loads(data)
        if "error" in chunk:
            outcome.error = f"error event: {chunk['error']['message'][:200]}"
        else:
            _take(outcome, chunk)
        num_chunks += 1
        if num_chunks == abort_after:
            return
    outcome.error, outcome.is_dropped = "the stream broke off", True


def _take(outcome: Outcome, answer: dict[str, object]) -> None:
    """A chunk or a whole answer."""
    entries = answer["choices"]
    assert isinstance(entries, list)
    for entry in entries:
        choice = outcome.choices[entry["index"]]
        if choice.finish is not None:
            outcome.error = "something came behind the finish"
        choice.text += entry["text"]
        logprobs = entry["logprobs"]
        if logprobs is not None:
            choice.tokens += logprobs["tokens"]
            for top in logprobs["top_logprobs"]:
                best = sorted(top.values(), reverse=True)[:2] if top else []
                choice.gaps.append(best[0] - best[1] if len(best) == 2 else math.inf)
        choice.finish = entry["finish_reason"]
