"""A closed-loop load generator: so many streams at once, prompts of random token ids, forced output length."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

import msgspec

from ..client import AsyncClient


class StreamTimes(msgspec.Struct, frozen=True):
    """One stream: seconds since the run began, and how many tokens came."""

    sent_s: float
    first_s: float
    last_s: float
    num_tokens: int

    @property
    def tpot_s(self) -> float:
        """(E2E - TTFT) / (N - 1)"""
        return (self.last_s - self.first_s) / (self.num_tokens - 1)


class LoadReport(msgspec.Struct, frozen=True):
    """A finished run."""

    streams: Sequence[StreamTimes]

    @property
    def output_tokens_per_s(self) -> float:
        wall_s = max(s.last_s for s in self.streams) - min(s.sent_s for s in self.streams)
        return sum(s.num_tokens for s in self.streams) / wall_s

    def percentile(self, what: str, q: float) -> float:
        """`what`: ttft or tpot; in milliseconds."""
        values = sorted((s.first_s - s.sent_s if what == "ttft" else s.tpot_s) * 1e3 for s in self.streams)
        return values[min(int(q / 100 * len(values)), len(values) - 1)]

    def line(self) -> str:
        tpot = statistics.median(s.tpot_s for s in self.streams) * 1e3
        return (
            f"{self.output_tokens_per_s:8.1f} tokens/s  TTFT p50 {self.percentile('ttft', 50):6.0f} p99 "
            f"{self.percentile('ttft', 99):6.0f} ms  TPOT p50 {tpot:6.2f} ms"
        )


async def run_load(
    url: str, *, concurrency: int, num_requests: int, input_len: int, output_len: int, vocab_size: int, seed: int = 0
) -> LoadReport:
    """`num_requests` in all, `concurrency` at a time; prompts differ, so nothing is a prefix hit."""
    random_ids = random.Random(seed)
    prompts = [[random_ids.randrange(100, vocab_size) for _ in range(input_len)] for _ in range(num_requests)]
    results: list[StreamTimes] = []
    begun = time.perf_counter()

    async def stream(client: AsyncClient, prompt: list[int]) -> None:
        sent = time.perf_counter() - begun
        first = last = 0.0
        num_tokens = 0
        async for delta in client.complete(
            prompt, max_tokens=output_len, temperature=0, ignore_eos=True, return_token_ids=True
        ):
            last = time.perf_counter() - begun
            if delta.token_ids and not num_tokens:
                first = last
            num_tokens += len(delta.token_ids or ())
        if num_tokens != output_len:
            raise RuntimeError(f"a stream ended after {num_tokens} of {output_len} tokens")
        results.append(StreamTimes(sent, first, last, num_tokens))

    async def worker(client: AsyncClient) -> None:
        while prompts:
            await stream(client, prompts.pop())

    async with AsyncClient(url) as client, asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker(client))
    return LoadReport(results)
