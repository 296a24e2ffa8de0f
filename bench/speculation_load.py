"""Tokens a second with and without drafts, on loads that copy and on free text.

    python -m callboard.bench.speculation_load MODEL [--method ngram] [--pairs 3] [--concurrency 1,4,16] [--tokens 128]

Two servers of the same model stand side by side, one of them with `--speculative METHOD`; turns go to one, then to the
other, in changing order. *Copy* asks for passages of the documentation and the source that come with Python, to be
repeated or edited, greedily; *free* for texts about anything, at temperature 0.8. Every answer has the same length on
both sides. Told are tokens a second, the ratio of each pair's turns (median, lowest to highest), and of the server that
drafts the drafts a row and step, and the share that is accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import shlex
import statistics
import string
import textwrap
import time
from collections.abc import Iterator, Sequence
from pydoc_data import topics
from urllib.parse import urlsplit

import msgspec
import uvloop

from .http_connection import HttpConnection
from .machine import describe_machine
from .overlap import read_counter
from .server_process import ServerProcess

_PASSAGE = 1_100
"""Characters of a passage that is copied."""
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


class Turn(msgspec.Struct, frozen=True):
    """One load on one server."""

    tokens_a_second: float
    counts: tuple[float, ...]
    """Of COUNTERS, in this turn."""


def copy_prompts() -> list[str]:
    """Passages that stand twice in the answer's context: in full, and as the beginning of their repetition."""
    documents = [topics.topics[name] for name in ("assignment", "atom-identifiers", "booleans", "class", "comparisons")]
    sources = [inspect.getsource(module) for module in (textwrap, shlex, string)]
    prompts = []
    for text in (*documents, *sources):
        passage = text[400 : 400 + _PASSAGE]
        prompts.append(f"The passage:\n\n{passage}\n\nThe same passage again, word for word:\n\n{passage[:160]}")
    return prompts


def free_prompts() -> list[str]:
    """Nothing to copy."""
    subjects = ("the sea", "a lost key", "winter in the city", "why bread rises", "an old map", "night trains")
    return [f"Here is a short story about {subject}.\n\n" for subject in subjects]


class _Load:
    def __init__(self, name: str, num_tokens: int) -> None:
        self.name = name
        self._prompts = copy_prompts() if name == "copy" else free_prompts()
        self._fields = {"temperature": 0} if name == "copy" else {"temperature": 0.8}
        self._num_tokens = num_tokens

    async def turn(self, url: str, concurrency: int, first: int) -> Turn:
        """first: number of the first request; equal numbers are equal requests."""
        address = urlsplit(url)
        assert address.hostname is not None and address.port is not None
        before = await _counts(url)
        numbers = iter(range(first, first + 2 * concurrency))
        begin_s = time.perf_counter()
        streams = [self._ask_all(address.hostname, address.port, numbers) for _ in range(concurrency)]
        num_tokens = sum(await asyncio.gather(*streams))
        took_s = time.perf_counter() - begin_s
        after = await _counts(url)
        return Turn(num_tokens / took_s, tuple(b - a for a, b in zip(before, after, strict=True)))

    async def _ask_all(self, host: str, port: int, numbers: Iterator[int]) -> int:
        """One after the other, as long as there are numbers. Raises RuntimeError if one is refused."""
        connection, num_tokens = HttpConnection(host, port), 0
        for number in numbers:
            body = {
                "prompt": self._prompts[number % len(self._prompts)],
                "max_tokens": self._num_tokens,
                "ignore_eos": True,
                "seed": number,
                **self._fields,
            }
            await connection.send("/v1/completions", json.dumps(body).encode())
            status, answer = await connection.receive()
            if status != 200:
                raise RuntimeError(f"{status}: {answer.decode()}")
            num_tokens += json.loads(answer)["usage"]["completion_tokens"]
        connection.close()
        return num_tokens


async def _counts(url: str) -> list[float]:
    names = [f"callboard:spec_decode_{name}_total" for name in COUNTERS]
    return [await asyncio.to_thread(read_counter, url, name) for name in names]


async def measure(
    plain_url: str, drafting_url: str, num_pairs: int, concurrencies: Sequence[int], num_tokens: int
) -> dict[tuple[str, int], list[tuple[Turn, Turn]]]:
    """(load, concurrency) -> pairs of turns, without and with drafts."""
    found: dict[tuple[str, int], list[tuple[Turn, Turn]]] = {}
    for name in ("copy", "free"):
        load = _Load(name, num_tokens)
        for concurrency in concurrencies:
            for url in (plain_url, drafting_url):
                await load.turn(url, max(concurrency, 4), 0)  # all prompts, so that they are cached
            pairs = []
            for pair in range(num_pairs):
                urls = [plain_url, drafting_url] if pair % 2 == 0 else [drafting_url, plain_url]
                turns = {url: await load.turn(url, concurrency, 2 * concurrency * pair) for url in urls}
                pairs.append((turns[plain_url], turns[drafting_url]))
            found[name, concurrency] = pairs
    return found


def line_of(name: str, concurrency: int, pairs: Sequence[tuple[Turn, Turn]]) -> str:
    """A row of the table."""
    ratios = sorted(drafting.tokens_a_second / plain.tokens_a_second for plain, drafting in pairs)
    plain, drafting = (statistics.median(turns[side].tokens_a_second for turns in pairs) for side in (0, 1))
    num_drafts, num_tokens, num_accepted = (sum(turns[1].counts[i] for turns in pairs) for i in range(3))
    each = num_tokens / num_drafts if num_drafts else 0.0
    share = num_accepted / num_tokens if num_tokens else 0.0
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"{name:<6} {concurrency:>4} {plain:>9.1f} {drafting:>9.1f}  {spread:<22} {each:>6.1f} {share:>7.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--method", default="ngram")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--concurrency", default="1,4,16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    arguments = parser.parse_args()
    settings = [word for setting in arguments.set for word in ("--set", setting)]
    plain_settings = [word for setting in arguments.set if "speculative" not in setting for word in ("--set", setting)]
    concurrencies = [int(number) for number in arguments.concurrency.split(",")]
    print(describe_machine())
    with (
        ServerProcess(arguments.model, *plain_settings) as plain,
        ServerProcess(arguments.model, "--speculative", arguments.method, *settings) as drafting,
    ):
        found = uvloop.run(measure(plain.url, drafting.url, arguments.pairs, concurrencies, arguments.tokens))
    print(f"{'load':<6} {'at':>4} {'without':>9} {'with':>9}  {'ratio':<22} {'drafts':>6} {'taken':>7}")
    for (name, concurrency), pairs in found.items():
        print(line_of(name, concurrency, pairs))


if __name__ == "__main__":
    main()
