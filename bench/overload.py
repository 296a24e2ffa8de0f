"""What overload does to the requests that are served, and how fast the others are told.

    python -m callboard.bench.overload [MODEL] [--rows N] [--queue Q] [--seconds S] [--input I] [--output O] [--mixed]

Measures the capacity C of a server (a closed loop that keeps rows and queue full), then offers a Poisson load of 0.9 C
and one of 4 C, and compares the time to the first token of what was accepted. Without MODEL it serves a small Llama
with random weights.

A request waits for as long as the queue in front of it takes at rate C, so `scheduler.max_queued_requests` is chosen as
C times the longest wait that is worth having. Here it is the number of rows, which is a wait of one request's time: at
0.9 C the queue is now and then full, at 4 C always, and the wait in a full queue is the same in both. That holds for
outputs of one length. With `--mixed` they have 0.5 to 1.5 times `--output`; then the wait in a full queue varies, and a
queue that is bounded in length alone gives a ratio of 1.3 to 1.4, whatever its length (a simulation without an engine
says so).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop

from .machine import describe_machine
from .open_loop import LoadGenerator, Outcome, completion_requests, poisson_arrivals
from .random_model import NUM_BYTE_TOKENS, write_random_model
from .server_process import ServerProcess


class Workload(msgspec.Struct, frozen=True):
    """What is served, and how long each load lasts."""

    rows: int = 8
    queue: int = 8
    input_len: int = 32
    output_len: int = 32
    is_mixed: bool = False
    vocab_size: int = NUM_BYTE_TOKENS
    seconds: float = 60.0
    base_load: float = 0.9
    overload: float = 4.0


class LoadResult(msgspec.Struct, frozen=True):
    """One open-loop load."""

    load: float
    """In parts of the capacity."""
    outcomes: Sequence[Outcome]

    @property
    def accepted(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == 200]

    @property
    def refused(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == 429]

    def ttft_ms(self, q: float) -> float:
        """Percentile q of the accepted requests' time to the first token."""
        return percentile([outcome.first_s * 1e3 for outcome in self.accepted], q)

    def refusal_ms(self, q: float) -> float:
        """Percentile q of the refused requests' time to the whole refusal."""
        return percentile([outcome.end_s * 1e3 for outcome in self.refused], q)

    def lines(self) -> str:
        number, accepted, refused = len(self.outcomes), self.accepted, self.refused
        text = (
            f"load {self.load:g}: {number} sent, {len(accepted)} accepted, {len(refused)} refused "
            f"({len(refused) / number:.1%}), {number - len(accepted) - len(refused)} failed; "
            f"sent late by {percentile([o.late_s * 1e3 for o in self.outcomes], 99):.1f} ms (p99)\n"
            f"  TTFT of the accepted    {_three(self.ttft_ms)}\n"
            f"  E2E of the accepted     {_three(lambda q: percentile([o.end_s * 1e3 for o in accepted], q))}"
        )
        if refused:
            seconds = sorted({outcome.retry_after_s or 0 for outcome in refused})
            text += (
                f"\n  time to a refusal       {_three(self.refusal_ms)}, Retry-After {seconds[0]} to {seconds[-1]} s"
            )
        return text


class OverloadReport(msgspec.Struct, frozen=True):
    """Both loads of one server."""

    capacity_per_s: float
    base: LoadResult
    overload: LoadResult

    @property
    def ttft_ratio(self) -> float:
        """p99 of the accepted under overload, over that under the base load."""
        return self.overload.ttft_ms(99) / self.base.ttft_ms(99)

    def text(self) -> str:
        return (
            f"capacity {self.capacity_per_s:.1f} requests/s\n{self.base.lines()}\n{self.overload.lines()}\n"
            f"TTFT p99 of the accepted, {self.overload.load:g} over {self.base.load:g}: {self.ttft_ratio:.2f}"
        )


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least q percent do not exceed; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(q / 100 * len(values)) - 1)]


def write_model(folder: Path) -> None:
    """Large enough that the worker, and not the server, is what limits the throughput."""
    write_random_model(folder, hidden_size=512, num_layers=6, num_heads=8, num_kv_heads=8, intermediate_size=1536)


def measure(model: str, workload: Workload) -> OverloadReport:
    """Start a server, measure it, stop it."""
    settings = (
        f"scheduler.max_num_seqs={workload.rows}",
        f"scheduler.max_queued_requests={workload.queue}",
        "process.worker.threads=1",
    )
    arguments = [part for setting in settings for part in ("--set", setting)]
    with ServerProcess(model, *arguments) as server:
        report = uvloop.run(_measure(server.url, workload))
        server.terminate()
        server.wait()
    return report


async def _measure(url: str, workload: Workload) -> OverloadReport:
    async with LoadGenerator(url) as generator:
        concurrency = workload.rows + workload.queue
        await generator.closed_loop(_requests(workload, 2 * concurrency, seed=1), concurrency)  # warm-up
        capacity = await _capacity(generator, workload, concurrency)
        results = []
        for seed, load in ((10, workload.base_load), (20, workload.overload)):
            arrivals_s = poisson_arrivals(load * capacity, workload.seconds, seed)
            requests = _requests(workload, len(arrivals_s), seed=seed)
            results.append(LoadResult(load, await generator.open_loop(requests, arrivals_s)))
    return OverloadReport(capacity, *results)


async def _capacity(generator: LoadGenerator, workload: Workload, concurrency: int) -> float:
    """Requests a second with all rows and the queue full: start and end of the run are left out.

    A third as long as a load, at least 10 requests a row.
    """
    loop = asyncio.get_running_loop()
    requests = _requests(workload, 10 * workload.rows, seed=2)
    begun_s = loop.time()
    await generator.closed_loop(requests, concurrency)
    rate = len(requests) / (loop.time() - begun_s)
    number = int(rate * workload.seconds / 3)
    if number <= len(requests):
        return rate
    begun_s = loop.time()
    await generator.closed_loop(_requests(workload, number, seed=3), concurrency)
    return number / (loop.time() - begun_s)


def _requests(workload: Workload, number: int, *, seed: int) -> list[bytes]:
    return completion_requests(
        number,
        input_len=workload.input_len,
        output_len=workload.output_len,
        is_mixed=workload.is_mixed,
        vocab_size=workload.vocab_size,
        seed=seed,
    )


def _three(percentile_of: Callable[[float], float]) -> str:
    return "  ".join(f"p{q} {percentile_of(q):8.1f}" for q in (50, 90, 99)) + " ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--queue", type=int)
    parser.add_argument("--input", type=int, default=32)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    workload = Workload(
        rows=args.rows,
        queue=args.rows if args.queue is None else args.queue,
        input_len=args.input,
        output_len=args.output,
        is_mixed=args.mixed,
        seconds=args.seconds,
    )
    print(describe_machine())
    print(workload, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            write_model(Path(folder))
        print(measure(args.model or folder, workload).text())


if __name__ == "__main__":
    main()
