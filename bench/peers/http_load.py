"""The client of every HTTP peer: OpenAI completions as streams in a closed loop, a connection a request.

Some servers drop a kept-alive connection behind a stream, so nobody's is kept. A stream's first and last token are the
first and last event with text; how many tokens it had is what the server's usage says.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence

import aiohttp
import msgspec
import uvloop

from ..load import StreamTimes
from .peer import PeerFailed

_MAX_ERROR_CHARACTERS = 300


class _Choice(msgspec.Struct):
    text: str = ""


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, object] | str | None = None


_decoder = msgspec.json.Decoder(_Event)


def completion_body(prompt: Sequence[int], output_len: int) -> bytes:
    """A greedy stream of so many tokens, with the usage at its end."""
    fields = {
        "prompt": prompt,
        "max_tokens": output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(fields).encode()


def run_http_load(url: str, bodies: Sequence[bytes], concurrency: int, output_len: int) -> list[StreamTimes]:
    """All requests, `concurrency` at a time. Raises PeerFailed if one fails or has another number of tokens."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(url, bodies, concurrency, output_len))


async def _run(url: str, bodies: Sequence[bytes], concurrency: int, output_len: int) -> list[StreamTimes]:
    left = deque(bodies)
    streams: list[StreamTimes] = []
    begun = time.perf_counter()

    async def work(session: aiohttp.ClientSession) -> None:
        while left:
            times = await _stream(session, f"{url}/v1/completions", left.popleft(), begun)
            if times.num_tokens != output_len:
                raise PeerFailed(f"an answer had {times.num_tokens} tokens, {output_len} were asked for")
            streams.append(times)

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    no_limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=no_limit) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    return streams


async def _stream(session: aiohttp.ClientSession, url: str, body: bytes, begun: float) -> StreamTimes:
    """Times since `begun`."""
    sent = time.perf_counter() - begun
    first: float | None = None
    last = 0.0
    num_tokens = 0
    try:
        async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
            if response.status != 200:
                text = (await response.text())[:_MAX_ERROR_CHARACTERS]
                raise PeerFailed(f"status {response.status}: {text}")
            async for line in response.content:
                if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
                    continue
                event = _decoder.decode(line[5:])
                if event.error is not None:
                    raise PeerFailed(str(event.error)[:_MAX_ERROR_CHARACTERS])
                if event.choices and event.choices[0].text:
                    last = time.perf_counter() - begun
                    first = last if first is None else first
                if event.usage is not None:
                    num_tokens = event.usage.completion_tokens
    except (aiohttp.ClientError, msgspec.DecodeError) as error:
        raise PeerFailed(f"a request failed: {error!r}") from error
    if first is None:
        raise PeerFailed("an answer had no text")
    return StreamTimes(sent, first, last, num_tokens)
