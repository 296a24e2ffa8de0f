"""What the control plane costs the worker beside it: its step times in a whole engine, and alone on the same plans.

    python -m callboard.bench.worker_alone MODEL [--concurrency 16] [--rounds 3] [--json]

A round: `callboard serve` with its defaults and a journal gets a load over HTTP and is stopped; then a process with
nothing beside it makes the worker's runner and runs the plans of that journal, warm-up included, one after the other.
Both sides take the time of a step as the worker's result has it, from the plan in hand to the tokens on the host, of
the same steps. A step is full if it computes one token of each of the streams. The CPU time is of all of a process's
threads, over the load, for each step; a journal takes a part of the control process's. "others" is the CPU time of
everything else on the machine: where that is not next to nothing, on either side, the ratio says nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from ..actors.launch import prepare_launch
from ..checkpoints import read_shape, resolve_checkpoint
from ..mailbox.messages.steps import StepPlan, StepResult
from ..topology import topology_from
from .load import run_load
from .machine import describe_machine
from .overlap import DEMO_MODEL
from .plan_stream import PlanStream, RanStep, read_plan_stream
from .process_samples import cpu_s, machine_cpu_s
from .runner_here import RunnerHere
from .server_process import ServerProcess

INPUT_LEN, OUTPUT_LEN = 128, 128
WARM_UP_TOKENS = 16
CLIENT, WORKER, OTHERS = "client", "worker", "others"
"""This process, which sends the load; the runner's; and all that is no part of the measurement."""


class CpuClock:
    """The CPU time since it was made: of some processes by name, and of all others on the machine together."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._begin_s = self._now_s()

    def spent_s(self) -> dict[str, float]:
        """With OTHERS behind the names. Raises OSError if a process is not there any more."""
        spent = {name: seconds - self._begin_s[name] for name, seconds in self._now_s().items()}
        others_s = spent.pop(OTHERS) - sum(spent.values())
        return spent | {OTHERS: max(0.0, others_s)}

    def _now_s(self) -> dict[str, float]:
        return {name: cpu_s(pid) for name, pid in self._pids.items()} | {OTHERS: machine_cpu_s()}


class EngineLoad(msgspec.Struct, frozen=True):
    """One load of a whole engine."""

    begin_ns: int
    """CLOCK_MONOTONIC; plans made before are of the warm-up."""
    tokens_per_s: float
    cpu_s: dict[str, float]
    """Of each process, while the load went on."""


class AloneRun(msgspec.Struct, frozen=True):
    """All plans of a journal, run alone."""

    run_ns: list[int]
    """Of each step, the warm-up's among them."""
    num_different: int
    """Steps whose tokens are not those of the engine."""
    cpu_s: dict[str, float]
    """Of this process and of others, behind the warm-up."""


class Side(msgspec.Struct, frozen=True):
    """Step times of one side."""

    full_ms: float
    """Median of the full steps."""
    total_s: float
    """Of all steps."""


class Round(msgspec.Struct, frozen=True):
    """The same steps on both sides."""

    num_steps: int
    num_full: int
    engine: Side
    alone: Side
    gap_ms: float
    """In the engine, from a full step's end to the start of the next that was planned before that end: the median."""
    tokens_per_s: float
    """Of the engine."""
    num_different: int
    """Steps that sampled other tokens alone."""
    cpu_ms: dict[str, float]
    """Of each process of the engine for each step."""
    alone_cpu_ms: dict[str, float]

    @property
    def full_ratio(self) -> float:
        """Engine over alone."""
        return self.engine.full_ms / self.alone.full_ms

    @property
    def total_ratio(self) -> float:
        """Engine over alone."""
        return self.engine.total_s / self.alone.total_s

    def lines(self) -> list[str]:
        """For people."""
        cpu, alone_cpu = (
            ", ".join(f"{name} {ms:.2f}" for name, ms in side.items()) for side in (self.cpu_ms, self.alone_cpu_ms)
        )
        tokens = "the same tokens" if not self.num_different else f"other tokens in {self.num_different} steps"
        return [
            f"{self.num_full} full steps: {self.engine.full_ms:.2f} ms in the engine, {self.alone.full_ms:.2f} alone, "
            f"ratio {self.full_ratio:.3f}; {self.gap_ms:.2f} ms between two in the engine",
            f"  all {self.num_steps} steps: {self.engine.total_s:.2f} s, {self.alone.total_s:.2f} alone, ratio "
            f"{self.total_ratio:.3f}; {tokens}; the engine's {self.tokens_per_s:.0f} tokens/s",
            f"  CPU ms a step: {cpu}; alone: {alone_cpu}",
        ]


def load_engine(model: str, concurrency: int, journal: Path) -> EngineLoad:
    """Start an engine, warm it up, load it, stop it; the journal is left."""
    vocab_size = read_shape(resolve_checkpoint(model)).vocab_size

    def send(url: str, num_requests: int, output_len: int, seed: int) -> float:
        load = run_load(
            url,
            concurrency=concurrency,
            num_requests=num_requests,
            input_len=INPUT_LEN,
            output_len=output_len,
            vocab_size=vocab_size,
            seed=seed,
        )
        return asyncio.run(load).output_tokens_per_s

    with ServerProcess(model, "--set", f"journal.path={journal}") as server:
        send(server.url, concurrency, WARM_UP_TOKENS, 1)
        pids = {WORKER: server.pid_of("worker"), "control": server.pid_of("control"), "supervisor": server.pid}
        clock, begin_ns = CpuClock(pids | {CLIENT: os.getpid()}), time.monotonic_ns()
        tokens_per_s = send(server.url, concurrency, OUTPUT_LEN, 2)
        cpu = clock.spent_s()
        server.terminate()
        server.wait()
    return EngineLoad(begin_ns, tokens_per_s, cpu)


def run_alone(run: Callable[[StepPlan], StepResult], steps: Sequence[RanStep], begin_ns: int) -> AloneRun:
    """Run the plans on a runner that has no rows yet; the CPU time is of those made from `begin_ns` on."""
    warm_up, measured = (
        [step.plan for step in steps if (step.plan.now_ns < begin_ns) == is_before] for is_before in (True, False)
    )
    results = [run(plan) for plan in warm_up]
    clock = CpuClock({WORKER: os.getpid()})
    results += [run(plan) for plan in measured]
    cpu = clock.spent_s()
    different = [ran.result.token_ids != result.token_ids for ran, result in zip(steps, results, strict=True)]
    return AloneRun([result.end_ns - result.start_ns for result in results], sum(different), cpu)


def run_alone_here(model: str, stream: PlanStream, begin_ns: int) -> AloneRun:
    """In this process, on a runner like that of the worker which the plans were made for."""
    blocks = {"kv_cache.num_blocks": str(stream.limits.num_blocks)}
    runner = RunnerHere(prepare_launch(topology_from(model, blocks)))
    gc.collect()
    gc.freeze()  # as a worker does when it is ready
    return run_alone(runner.run, stream.steps, begin_ns)


def compare(steps: Sequence[RanStep], load: EngineLoad, alone: AloneRun, concurrency: int) -> Round:
    """Of the steps whose plans were made from the load's beginning on. Raises ValueError if none of them is full."""
    pairs = list(zip(steps, alone.run_ns, strict=True))
    pairs = [(step, alone_ns) for step, alone_ns in pairs if step.plan.now_ns >= load.begin_ns]
    engine_ns = np.array([step.result.end_ns - step.result.start_ns for step, _ in pairs])
    alone_ns = np.array([ns for _, ns in pairs])
    is_full = np.array([_is_full(step.plan, concurrency) for step, _ in pairs])
    if not is_full.any():
        raise ValueError("no step had all streams: the load is too short")
    gaps_ns = [
        after.result.start_ns - before.result.end_ns
        for (before, _), (after, _) in pairwise(pairs)
        if _is_full(before.plan, concurrency) and after.plan.now_ns < before.result.end_ns
    ]
    return Round(
        num_steps=len(pairs),
        num_full=int(is_full.sum()),
        engine=Side(float(np.median(engine_ns[is_full])) / 1e6, float(engine_ns.sum()) / 1e9),
        alone=Side(float(np.median(alone_ns[is_full])) / 1e6, float(alone_ns.sum()) / 1e9),
        gap_ms=float(np.median(gaps_ns)) / 1e6 if gaps_ns else 0.0,
        tokens_per_s=load.tokens_per_s,
        num_different=alone.num_different,
        cpu_ms={name: seconds * 1e3 / len(pairs) for name, seconds in load.cpu_s.items()},
        alone_cpu_ms={name: seconds * 1e3 / len(pairs) for name, seconds in alone.cpu_s.items()},
    )


def _is_full(plan: StepPlan, concurrency: int) -> bool:
    return plan.num_tokens == np.ones(concurrency, "<i4").tobytes()


def measure_round(model: str, concurrency: int) -> Round:
    """The engine, then its worker's plans alone in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal")
        load = load_engine(model, concurrency, journal)
        command = [sys.executable, "-P", "-m", "callboard.bench.worker_alone", model]
        command += ["--alone", str(journal), "--since", str(load.begin_ns)]
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        alone = msgspec.json.decode(output, type=AloneRun)
        return compare(read_plan_stream(journal).steps, load, alone, concurrency)


def summary(rounds: Sequence[Round]) -> str:
    """Medians over the rounds and how far these lie apart: if a side's own times do, so does the machine's speed."""
    parts = [
        f"{name} {statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
        for name, digits, values in (
            ("engine over alone: full steps", 3, [one.full_ratio for one in rounds]),
            ("all steps", 3, [one.total_ratio for one in rounds]),
            ("a full step in the engine ms", 2, [one.engine.full_ms for one in rounds]),
            ("alone ms", 2, [one.alone.full_ms for one in rounds]),
        )
    ]
    return f"median of {len(rounds)} rounds: {', '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--concurrency", type=int, default=16, help="streams at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the rounds for a program")
    parser.add_argument("--alone", type=Path, metavar="JOURNAL", help="run its plans in this process")
    parser.add_argument("--since", type=int, default=0, metavar="NS", help="plans made before are the warm-up")
    args = parser.parse_args()
    if args.alone is not None:
        alone = run_alone_here(args.model, read_plan_stream(args.alone), args.since)
        print(msgspec.json.encode(alone).decode())
        return
    if not args.json:
        print(describe_machine(), flush=True)
    rounds = []
    for number in range(args.rounds):
        rounds.append(measure_round(args.model, args.concurrency))
        if not args.json:
            print("\n".join([f"round {number + 1}: {rounds[-1].lines()[0]}", *rounds[-1].lines()[1:]]), flush=True)
    print(msgspec.json.encode(rounds).decode() if args.json else summary(rounds))


if __name__ == "__main__":
    main()
