"""What streams under a grammar cost those beside them, and what a schema that explodes costs everybody.

    python -m callboard.bench.constrained_load MODEL [--pairs 7] [--streams 16] [--tokens 192]

In turns on one server: all `--streams` streams free; half of them free, half held to a JSON schema; all free; all free,
while a client sends schemas that take the compiler beyond its limits, one after the other; and again from the start,
with a free turn at the end. Told are the free streams' latencies a token (p99 of a turn, and its ratio to the mean of
the free turns on both sides of it, so that a machine that gets slower or faster does not count; the median of the ratio
over all pairs), and the time of a mask.

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
_LOADS = ("constrained", "bombs")
"""Those that are compared with the free ones, in their order."""


class Turn(msgspec.Struct):
    """One load."""

    itl_ms: list[float] = []
    """Of the free streams: one entry a token."""
    num_bombs: int = 0
    """Refused with a 400."""

    def percentile_ms(self, percentile: float) -> float:
        return float(np.percentile(self.itl_ms, percentile))


class Result(msgspec.Struct):
    """All turns, and the server's own figures at the end."""

    turns: dict[str, list[Turn]]
    """By load; of the free ones there is one on both sides of each other: free, constrained, free, bombs, free, ..."""
    mask_p50_us: float
    mask_p99_us: float
    num_masks: float
    num_late: float

    def ratios(self, name: str, percentile: float = 99) -> list[float]:
        """Ascending: of a turn's latency to the mean of the free turns on both sides of it."""
        free = [turn.percentile_ms(percentile) for turn in self.turns["free"]]
        offset = _LOADS.index(name)
        pairs = zip(free[offset::2], free[offset + 1 :: 2], strict=False)
        turns = zip(self.turns[name], pairs, strict=True)
        return sorted(2 * turn.percentile_ms(percentile) / (before + after) for turn, (before, after) in turns)

    def ratio(self, name: str, percentile: float = 99) -> float:
        """Median over the pairs, of p99 with to p99 without."""
        return statistics.median(self.ratios(name, percentile))

    def lines(self) -> list[str]:
        lines = [f"{'turns':<15} {'p50':>9} {'p99':>9}   p50, p99 to those of the free turns beside: median (range)"]
        for name, turns in self.turns.items():
            p50, p99 = np.percentile([ms for turn in turns for ms in turn.itl_ms], (50, 99))
            line = f"{len(turns):>2} {name:<12} {p50:>6.1f} ms {p99:>6.1f} ms"
            for percentile in (50, 99) if name in _LOADS else ():
                ratios = self.ratios(name, percentile)
                line += f"   {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
            lines.append(line)
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
    turns: dict[str, list[Turn]] = {"free": [await load.turn(num_streams, 0, has_bombs=False)]}
    for name in _LOADS * num_pairs:
        num_constrained = num_streams // 2 if name == "constrained" else 0
        turn = await load.turn(num_streams - num_constrained, num_constrained, has_bombs=name == "bombs")
        turns.setdefault(name, []).append(turn)
        turns["free"].append(await load.turn(num_streams, 0, has_bombs=False))
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
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    arguments = parser.parse_args()
    print(describe_machine())
    result = run(arguments.model, arguments.set, arguments.pairs, arguments.streams, arguments.tokens)
    print("\n".join(result.lines()))


if __name__ == "__main__":
    main()
