"""Many requests through a null device: does anything grow, leak or change?

    python -m callboard.bench.soak [--requests N] [--at-once N] [--rounds N]

Mixed requests (see `soak_requests`) in rounds; every answer is compared with what the null device must say. Between
the rounds, when no request is under way, memory, descriptors and threads of every process of the engine are read, and a
canary is asked. At the end: no KV block is in use or was leaked, a request that needs the whole pool fits, memory grew
by less than MAX_GROWTH over the second half of the rounds, and descriptors and threads are what they were.

Short runs grow while caches fill that are bounded, but slowly: pieces of text in the tokenizer (10,000), and, in the
control process, freed arrays in numpy (7 of each size under 1 KiB; the null device fills its own when it warms up).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ..checkpoints import resolve_checkpoint
from ..text import load_tokenizer
from ..text.tokenizer import Tokenizer
from .http_connection import HttpConnection
from .machine import describe_machine
from .null_answers import NullDevice
from .overlap import read_counter
from .process_samples import ProcessSample, growth_bytes_per_s, sample_process
from .random_model import write_random_model
from .server_process import ServerProcess
from .soak_requests import Expected, SoakRequest, fault_of, make_request

MAX_GROWTH_BYTES_PER_HOUR = 1_000_000
MAX_MODEL_LEN = 4096
NUM_BLOCKS = MAX_MODEL_LEN // 16
"""One request of full length needs them all, so preemption and eviction have their share in the load."""
_GAUGES = ("callboard:num_requests_running", "callboard:num_requests_waiting", "callboard:kv_cache_usage_perc")
_CANARY = "the canary sings "


class SoakReport(msgspec.Struct, frozen=True):
    """A finished run."""

    num_requests: int
    seconds: float
    num_aborted: int
    faults: list[str]
    """Wrong answers (the first ones), and what else must not be."""
    samples: dict[str, list[ProcessSample]]
    """By process, in order of time."""

    def growth_bytes_per_hour(self, process: str) -> float:
        """Over the second half of the samples, at this run's rate of requests."""
        samples = self.samples[process]
        return 3600 * growth_bytes_per_s(samples[len(samples) // 2 :])

    def growth_bytes_per_request(self, process: str) -> float:
        return self.growth_bytes_per_hour(process) / 3600 / (self.num_requests / self.seconds)

    def unsteady(self) -> list[str]:
        """Processes whose descriptors or threads are not the same in all samples of the second half."""
        found = []
        for process, samples in self.samples.items():
            for what in ("num_fds", "num_threads"):
                counts = {getattr(sample, what) for sample in samples[len(samples) // 2 :]}
                if len(counts) > 1:
                    found.append(f"{process}: {what} {sorted(counts)}")
        return found

    def lines(self) -> list[str]:
        """A table of every tenth of the run, and the growth of each process."""
        some = next(iter(self.samples.values()))
        shown = sorted({round(i * (len(some) - 1) / 10) for i in range(11)})
        heads = [f"{process:>12} MB  fds  thr" for process in self.samples]
        lines = ["requests       s" + "".join(heads)]
        for i in shown:
            cells = [
                f"{samples[i].memory_bytes / 1e6:15.2f} {samples[i].num_fds:4} {samples[i].num_threads:4}"
                for samples in self.samples.values()
            ]
            lines.append(f"{some[i].num_requests:8,} {some[i].time_s:7.1f}" + "".join(cells))
        rate = self.num_requests / self.seconds
        lines.append(
            f"{self.num_requests:,} requests ({self.num_aborted:,} aborted) in {self.seconds:.0f} s: {rate:.0f}/s"
        )
        for process in self.samples:
            lines.append(
                f"{process}: {self.growth_bytes_per_hour(process) / 1e6:+.3f} MB/h at this rate, "
                f"{self.growth_bytes_per_request(process):+.2f} bytes a request"
            )
        return lines


class _Soak:
    def __init__(self, server: ServerProcess, tokenizer: Tokenizer, device: NullDevice, num_at_once: int) -> None:
        parts = urlsplit(server.url)
        assert parts.hostname is not None and parts.port is not None
        self._server, self._tokenizer, self._device = server, tokenizer, device
        self._connections = [HttpConnection(parts.hostname, parts.port) for _ in range(num_at_once)]
        self._pids = {"supervisor": server.pid, **{name: server.pid_of(name) for name in ("control", "worker")}}
        self._begun_s = time.perf_counter()
        self._next = 0
        self.num_aborted = 0
        self.faults: list[str] = []
        self.samples: dict[str, list[ProcessSample]] = {process: [] for process in self._pids}

    async def run_round(self, up_to: int) -> None:
        """The next requests, until `up_to` have been sent in all; returns when each has its answer."""
        async with asyncio.TaskGroup() as group:
            for connection in self._connections:
                group.create_task(self._ask(connection, up_to))

    async def _ask(self, connection: HttpConnection, up_to: int) -> None:
        while self._next < up_to:
            index, self._next = self._next, self._next + 1
            request = make_request(index, self._tokenizer, self._device)
            await connection.send(request.path, request.body)
            if request.abort_after is not None:
                await self._abort(connection, request)
                continue
            fault = fault_of(request, *await connection.receive())
            if fault is not None:
                self.faults.append(f"request {index}: {fault}")

    async def _abort(self, connection: HttpConnection, request: SoakRequest) -> None:
        self.num_aborted += 1
        num_parts = 0
        if request.abort_after:
            async for _ in connection.receive_parts():
                num_parts += 1
                if num_parts == request.abort_after:
                    break
        connection.close()

    async def wait_idle(self) -> None:
        """Until nothing runs: aborted requests need a moment to end."""
        while any([await self._counter(gauge) for gauge in _GAUGES]):
            await asyncio.sleep(0.02)  # between two looks at the gauges

    async def ask_canary(self) -> None:
        """A greedy answer that must never change, on every connection: so all of them are open afterwards."""
        prompt_ids = self._tokenizer.encode(_CANARY, True)
        expected = self._device.answer(prompt_ids, 64)
        await asyncio.gather(*(self._ask_whole("the canary", c, prompt_ids, expected) for c in self._connections))

    async def ask_for_the_whole_pool(self) -> None:
        """A request that needs every block of the pool."""
        prompt_ids = (self._tokenizer.encode(_CANARY, True) * MAX_MODEL_LEN)[: MAX_MODEL_LEN - 64]
        expected = self._device.answer(prompt_ids, 64)
        await self._ask_whole("the largest request", self._connections[0], prompt_ids, expected)

    async def _ask_whole(
        self, what: str, connection: HttpConnection, prompt_ids: list[int], expected: list[int]
    ) -> None:
        request = SoakRequest(
            path="/v1/completions",
            body=msgspec.json.encode(
                {
                    "prompt": prompt_ids,
                    "max_tokens": len(expected),
                    "temperature": 0,
                    "ignore_eos": True,
                    "return_token_ids": True,
                }
            ),
            is_stream=False,
            abort_after=None,
            choices=[Expected(self._tokenizer.decode(expected), "length", expected)],
        )
        await connection.send(request.path, request.body)
        fault = fault_of(request, *await connection.receive())
        if fault is not None:
            self.faults.append(f"{what}: {fault}")

    def sample(self) -> None:
        time_s = time.perf_counter() - self._begun_s
        for process, pid in self._pids.items():
            self.samples[process].append(sample_process(pid, time_s, self._next))

    async def check_leaks(self) -> None:
        """After the engine has looked itself, which it does when it has been idle for a moment."""
        await asyncio.sleep(2.0)
        if num_leaks := await self._counter("callboard:leaked_blocks_total"):
            self.faults.append(f"{num_leaks:.0f} KV blocks were leaked")

    async def _counter(self, name: str) -> float:
        return await asyncio.to_thread(read_counter, self._server.url, name)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


async def _run(soak: _Soak, num_requests: int, num_rounds: int) -> None:
    await soak.ask_canary()
    for i in range(1, num_rounds + 1):
        await soak.run_round(num_requests * i // num_rounds)
        await soak.wait_idle()
        await soak.ask_canary()
        soak.sample()
    await soak.check_leaks()
    await soak.ask_for_the_whole_pool()
    await soak.ask_canary()
    await soak.wait_idle()
    soak.close()


def run_soak(
    num_requests: int, *, num_at_once: int = 64, num_rounds: int = 40, settings: Sequence[str] = ()
) -> SoakReport:
    """Start an engine (control and a null worker), put the requests through, stop it. settings: `section.key=value`."""
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(Path(folder), max_model_len=MAX_MODEL_LEN, merges_letters=True)
        tokenizer = load_tokenizer(resolve_checkpoint(folder))
        device = NullDevice(range(1, tokenizer.vocab_size), 0)
        options = ["process.worker.device=null", f"kv_cache.num_blocks={NUM_BLOCKS}", *settings]
        arguments = [argument for option in options for argument in ("--set", option)]
        with ServerProcess(folder, *arguments) as server:
            soak = _Soak(server, tokenizer, device, num_at_once)
            begun_s = time.perf_counter()
            asyncio.run(_run(soak, num_requests, num_rounds))
            seconds = time.perf_counter() - begun_s
            server.terminate()
            status = server.wait()
            if status != 0:
                soak.faults.append(f"the server ended with status {status}:\n{server.log()}")
    return SoakReport(num_requests, seconds, soak.num_aborted, soak.faults, soak.samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    print(describe_machine())
    report = run_soak(args.requests, num_at_once=args.at_once, num_rounds=args.rounds)
    print("\n".join(report.lines()))
    faults = [*report.faults, *report.unsteady()]
    for process in report.samples:
        if (growth := report.growth_bytes_per_hour(process)) > MAX_GROWTH_BYTES_PER_HOUR:
            faults.append(f"{process} grows by {growth / 1e6:.1f} MB an hour")
    for fault in faults[:20]:
        print(f"FAULT {fault}")
    print("soak OK" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
