"""`callboard.Engine` for `offline_worker`: MODEL [SECTION.KEY=VALUE...]"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Sequence

import uvloop

from ...client import Engine
from .offline_worker import Run, Stream, serve_lines
from .peer import FIRST_PROMPT


class OfflineEngine:
    """An engine, and the loop that it lives in."""

    def __init__(self, runner: asyncio.Runner, model: str, settings: Sequence[str]) -> None:
        self._runner = runner
        self._engine = Engine(model, set=dict(setting.split("=", 1) for setting in settings))
        runner.run(self._engine.start())

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[Stream]:
        return self._runner.run(self._run(prompts, concurrency, output_len))

    async def _run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[Stream]:
        left = deque(prompts)
        streams: list[Stream] = []
        begun = time.perf_counter()

        async def work() -> None:
            while left:
                streams.append(await self._stream(left.popleft(), output_len, begun))

        await asyncio.gather(*(work() for _ in range(concurrency)))
        return streams

    async def _stream(self, prompt: Sequence[int], output_len: int, begun: float) -> Stream:
        sent = time.perf_counter() - begun
        times: list[float] = []
        async for delta in self._engine.generate(prompt, max_tokens=output_len, temperature=0, ignore_eos=True):
            times += [time.perf_counter() - begun] * len(delta.token_ids or ())
        return sent, times[0], times[-1], len(times)

    def close(self) -> None:
        self._runner.run(self._engine.close(drains=False))


def main() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        engines: list[OfflineEngine] = []

        def load(arguments: Sequence[str]) -> Run:
            engine = OfflineEngine(runner, arguments[0], arguments[1:])
            engines.append(engine)
            engine.run([FIRST_PROMPT], 1, 1)
            return engine.run

        try:
            serve_lines(load, sys.argv[1:])
        finally:
            for engine in engines:
                engine.close()


if __name__ == "__main__":
    main()
