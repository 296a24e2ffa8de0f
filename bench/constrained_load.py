"""What streams under a grammar cost those beside them, and what a schema that explodes costs everybody.

    python -m callboard.bench.constrained_load MODEL [--pairs 5] [--streams 16] [--tokens 128]

In turns on one server: all `--streams` streams free; half of them free, half held to a JSON schema; all free, while a
client sends schemas that take the compiler beyond its limits, one after the other. Told are the free streams' latencies
a token (p99 of a turn, and the ratio to the free turn before it), and the time of a mask.

A piece of a stream may hold several tokens, more of them where the client has less of the processor: the time between
two pieces counts once for each token, divided by their number.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
import numpy as np
import uvloop

from .http_connection import HttpConnection
from .machine import describe_machine
from .overlap import read_counter
from .server_process import ServerProcess

_CHAT = "/v1/chat/completions"
LIST_SCHEMA = {
    "type": "array",
    "minItems": 100,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "kind": {"enum": ["red", "green", "blue"]},
            "price": {"type": "number", "minimum": 0, "maximum": 100},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "maxItems": 3},
        },
        "required": ["name", "kind", "price", "tags"],
        "additionalProperties": False,
    },
}
"""An answer to it is longer than any turn."""


class Turn(msgspec.Struct):
    """One load."""

    itl_ms: list[float] = []
    """Of the free streams: one entry a token."""
    num_bombs: int = 0
    """Refused with a 400."""

    def p99_ms(self) -> float:
        return float(np.percentile(self.itl_ms, 99))


class Result(msgspec.Struct):
    """All turns, and the server's own figures at the end."""

    turns: dict[str, list[Turn]]
    mask_p50_us: float
    mask_p99_us: float
    num_masks: float
    num_late: float

    def ratio(self, name: str) -> float:
        """Median over the pairs, of p99 with to p99 without."""
        pairs = zip(self.turns[name], self.turns["free"], strict=True)
        return statistics.median(turn.p99_ms() / free.p99_ms() for turn, free in pairs)

    def lines(self) -> list[str]:
        lines = [f"{'turn':<12} {'p50':>8} {'p99':>8}   of p99 to that of the free turn before it"]
        for name, turns in self.turns.items():
            together = [ms for turn in turns for ms in turn.itl_ms]
            ratios = sorted(t.p99_ms() / f.p99_ms() for t, f in zip(turns, self.turns["free"], strict=True))
            spread = f"{self.ratio(name):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            p50, p99 = np.percentile(together, (50, 99))
            lines.append(f"{name:<12} {p50:>5.1f} ms {p99:>5.1f} ms   {spread}")
        num_bombs = sum(turn.num_bombs for turn in self.turns["bombs"])
        lines.append(
            f"mask: p50 {self.mask_p50_us:.0f} us, p99 {self.mask_p99_us:.0f} us; {self.num_masks:.0f} masks, "
            f"{self.num_late:.0f} late; {num_bombs} bombs refused"
        )
        return lines


def bomb_schema(number: int) -> object:
    """Valid, and a machine with millions of states, for it has no factor in common with 10: the compiler works on it
    for as long as it may. Each is another."""
    return {"type": "integer", "multipleOf": 9_999_999 + 10 * number}


async def measure(url: str, num_pairs: int, num_streams: int, num_tokens: int) -> Result:
    """Raises RuntimeError if a stream is refused, or a bomb is not."""
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    load = _Load(address.hostname, address.port, num_tokens)
    await load.turn(num_streams // 2, num_streams // 2, has_bombs=False)  # what is met for the first time
    turns: dict[str, list[Turn]] = {"free": [], "constrained": [], "bombs": []}
    for _ in range(num_pairs):
        turns["free"].append(await load.turn(num_streams, 0, has_bombs=False))
        turns["constrained"].append(await load.turn(num_streams // 2, num_streams // 2, has_bombs=False))
        turns["bombs"].append(await load.turn(num_streams, 0, has_bombs=True))
    names = ("grammar_mask_seconds_p50", "grammar_mask_seconds_p99", "grammar_mask_seconds_count")
    p50, p99, count = [await asyncio.to_thread(read_counter, url, f"callboard:{name}") for name in names]
    num_late = await asyncio.to_thread(read_counter, url, "callboard:late_grammar_masks_total")
    return Result(turns, p50 * 1e6, p99 * 1e6, count, num_late)


class _Load:
    def __init__(self, host: str, port: int, num_tokens: int) -> None:
        self._host, self._port, self._num_tokens = host, port, num_tokens
        self._numbers = itertools.count()

    async def turn(self, num_free: int, num_constrained: int, *, has_bombs: bool) -> Turn:
        turn = Turn()
        is_over = asyncio.Event()
        bomber = asyncio.create_task(self._send_bombs(turn, is_over)) if has_bombs else None
        free = [self._stream({"ignore_eos": True}, turn.itl_ms) for _ in range(num_free)]
        form = {"type": "json_schema", "json_schema": {"name": "list", "schema": LIST_SCHEMA}}
        bound = [self._stream({"response_format": form}, []) for _ in range(num_constrained)]
        await asyncio.gather(*free, *bound)
        is_over.set()
        if bomber is not None:
            await bomber  # the last one is not to burn on in the next turn
        return turn

    async def _stream(self, fields: dict[str, object], itl_ms: list[float]) -> None:
        """Appends the times of its tokens; those of its first piece, which have no beginning, are left out."""
        number = next(self._numbers)
        body = {
            "messages": [{"role": "user", "content": f"List {number} things that you know, with their prices."}],
            "max_tokens": self._num_tokens,
            "seed": number,
            "stream": True,
            "return_token_ids": True,
            **fields,
        }
        connection = HttpConnection(self._host, self._port)
        await connection.send(_CHAT, json.dumps(body).encode())
        last_s = 0.0
        async for status, part in connection.receive_parts():
            if status != 200:
                raise RuntimeError(f"{status}: {part.decode()}")
            num_tokens = _num_tokens(part)
            if not num_tokens:
                continue
            now_s = time.perf_counter()
            if last_s:
                itl_ms += [(now_s - last_s) * 1e3 / num_tokens] * num_tokens
            last_s = now_s
        connection.close()

    async def _send_bombs(self, turn: Turn, is_over: asyncio.Event) -> None:
        connection = HttpConnection(self._host, self._port)
        try:
            while not is_over.is_set():
                form = {"name": "bomb", "schema": bomb_schema(next(self._numbers))}
                body = {
                    "messages": [{"role": "user", "content": "boom"}],
                    "max_tokens": 4,
                    "response_format": {"type": "json_schema", "json_schema": form},
                }
                await connection.send(_CHAT, json.dumps(body).encode())
                status, answer = await connection.receive()
                if status != 400:
                    raise RuntimeError(f"a bomb was answered with {status}: {answer.decode()}")
                turn.num_bombs += 1
        finally:
            connection.close()


def _num_tokens(part: bytes) -> int:
    """Of all events in a piece."""
    events = [line[6:] for line in part.split(b"\n") if line.startswith(b"data: {")]
    return sum(len(choice.get("token_ids") or ()) for event in events for choice in json.loads(event)["choices"])


def run(model: str, settings: Sequence[str], num_pairs: int, num_streams: int, num_tokens: int) -> Result:
    """On a server of its own."""
    arguments = [part for setting in settings for part in ("--set", setting)]
    with ServerProcess(model, *arguments) as server:
        return uvloop.run(measure(server.url, num_pairs, num_streams, num_tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    arguments = parser.parse_args()
    print(describe_machine())
    result = run(arguments.model, arguments.set, arguments.pairs, arguments.streams, arguments.tokens)
    print("\n".join(result.lines()))


if __name__ == "__main__":
    main()
