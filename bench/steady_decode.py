"""What a step of steady decoding costs the scheduler, beside a plain loop over one object a request.

    python -m callboard.bench.steady_decode [--rows 1 64 256 1024] [--steps 400] [--pairs 3]

All rows run, each with a prompt of another length, so that every step some of them need a block. Of a step is measured,
in CPU time of the process: decode the result, apply it, make the plans that there is room for (depth 2), encode them
("step"); and what follows when the plan is out: blocks that are full get their keys, and what goes to the tokenizer is
collected ("after"). Both sides are measured in turn, in the same process; medians over all steps of all pairs. The
plain loop does what a scheduler in plain Python does for each request in turn; it cannot preempt, admit or count.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
import numpy as np

from ..mailbox.messages.admission import Admit, TokenDeltas
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import NewRow, StepPlan, StepResult
from ..scheduling.events import WorkerAttached
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler
from .machine import describe_machine

WARM_UP_STEPS = 20
BLOCK_SIZE = 16
MAX_TOKENS = 100_000


class Figures(NamedTuple):
    """Medians of one side, in microseconds."""

    step_us: float
    after_us: float

    @property
    def all_us(self) -> float:
        return self.step_us + self.after_us


class ArraySide:
    """The scheduler."""

    def __init__(self, admits: Sequence[Admit], num_blocks: int) -> None:
        limits = SchedulerLimits(
            max_num_seqs=len(admits),
            max_num_batched_tokens=max(8192, 2 * len(admits)),
            long_prefill_token_threshold=0,
            pipeline_depth=2,
            watermark=0.01,
            max_queued_requests=len(admits),
            max_queued_tokens=1 << 30,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            prefix_caching=True,
            max_model_len=MAX_TOKENS,
            max_plan_tokens=1 << 30,
        )
        self._scheduler = Scheduler(limits)
        self._scheduler.step(0, [WorkerAttached(1)])
        self.plans = self._plans(self._scheduler.step(1, admits))

    def _plans(self, plan: StepPlan | None) -> list[StepPlan]:
        plans = []
        while plan is not None:
            plans.append(plan)
            plan = self._scheduler.step(2, ()) if self._scheduler.can_plan else None
        return plans

    def step(self, result: StepResult) -> list[StepPlan]:
        return self._plans(self._scheduler.step(2, [result]))

    def collect(self) -> TokenDeltas:
        return self._scheduler.collect().deltas["tokenizer.0"]


class PlainRequest:
    """One object a request, one Python object a token."""

    __slots__ = ("admit", "block_ids", "keys", "num_computed", "num_in_flight", "row", "run", "token_ids")

    def __init__(self, admit: Admit, row: int) -> None:
        self.admit, self.row, self.run = admit, row, row + 1
        self.token_ids = list(admit.prompt_token_ids)
        self.block_ids: list[int] = []
        self.keys = [bytes(32)]
        self.num_computed = self.num_in_flight = 0


class PlainSide:
    """The same work for the same requests, one after the other."""

    def __init__(self, admits: Sequence[Admit], num_blocks: int) -> None:
        self._running = {row + 1: PlainRequest(admit, row) for row, admit in enumerate(admits)}
        self._free = list(range(num_blocks))
        self._cache: dict[bytes, int] = {}
        self._deltas: dict[int, list[int]] = {}
        self._step = 0
        self.plans = [self._plan(), self._plan()]

    def _plan(self) -> StepPlan:
        rows, runs, starts, counts, samples = [], [], [], [], []
        block_rows: list[int] = []
        block_ids: list[int] = []
        budget = 1 << 23  # every prompt at once
        for request in self._running.values():
            wanted = len(request.token_ids) + request.num_in_flight - request.num_computed
            num_tokens = min(wanted, budget)
            if not num_tokens or len(request.token_ids) + request.num_in_flight >= MAX_TOKENS:
                continue
            while len(request.block_ids) * BLOCK_SIZE < request.num_computed + num_tokens:
                block = self._free.pop()
                request.block_ids.append(block)
                block_rows.append(request.row)
                block_ids.append(block)
            rows.append(request.row)
            runs.append(request.run)
            starts.append(request.num_computed)
            counts.append(num_tokens)
            samples.append(num_tokens == wanted)
            request.num_computed += num_tokens
            request.num_in_flight += 1
            budget -= num_tokens
            self._cache_blocks(request)
        self._step += 1
        new_rows: list[NewRow] = []
        return StepPlan(
            1,
            self._step - 1,
            2,
            new_rows,
            b"",
            np.array(rows, "<i4").tobytes(),
            np.array(runs, "<i8").tobytes(),
            np.array(starts, "<i4").tobytes(),
            np.array(counts, "<i4").tobytes(),
            np.array(samples, np.bool_).tobytes(),
            np.array(block_rows, "<i4").tobytes(),
            np.array(block_ids, "<i4").tobytes(),
        )

    def _cache_blocks(self, request: PlainRequest) -> None:
        num_full = min(request.num_computed, len(request.token_ids)) // BLOCK_SIZE
        for index in range(len(request.keys) - 1, num_full):
            tokens = np.array(request.token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE], "<i4").tobytes()
            key = sha256(request.keys[-1] + tokens).digest()
            request.keys.append(key)
            self._cache.setdefault(key, request.block_ids[index])

    def step(self, result: StepResult) -> list[StepPlan]:
        runs = np.frombuffer(result.runs, "<i8").tolist()
        positions = np.frombuffer(result.positions, "<i4").tolist()
        token_ids = np.frombuffer(result.token_ids, "<i4").tolist()
        for run, position, token_id in zip(runs, positions, token_ids, strict=True):
            request = self._running.get(run)
            if request is None:
                continue
            assert position == len(request.token_ids)
            request.token_ids.append(token_id)
            request.num_in_flight -= 1
            self._deltas.setdefault(run, []).append(token_id)
            if token_id in request.admit.eos_token_ids or len(request.token_ids) >= MAX_TOKENS:
                del self._running[run]
        return [self._plan()]

    def collect(self) -> TokenDeltas:
        requests = [self._running[run] for run in self._deltas]
        message = TokenDeltas(
            [request.admit.request_id for request in requests],
            [request.admit.choice for request in requests],
            [request.admit.attempt for request in requests],
            [len(request.token_ids) - len(request.admit.prompt_token_ids) - 1 for request in requests],
            list(self._deltas.values()),
            [0 for _ in requests],
        )
        self._deltas = {}
        return message


def make_admits(num_rows: int) -> list[Admit]:
    """Prompts of 17 to 272 tokens."""
    draw = np.random.default_rng(0)
    return [
        Admit(
            request_id=f"cmpl-{number:032x}",
            choice=0,
            attempt=1,
            tokenizer="tokenizer.0",
            prompt_token_ids=draw.integers(1, 30_000, 17 + (number * 37) % 256).tolist(),
            sampling=SamplingParams(seed=number),
            eos_token_ids=(2,),
            arrival_ns=0,
        )
        for number in range(num_rows)
    ]


def sample_all(plan: StepPlan) -> StepResult:
    """A token for each row that yields one."""
    samples = np.frombuffer(plan.samples, np.bool_)
    runs = np.frombuffer(plan.runs, "<i8")[samples]
    positions = (np.frombuffer(plan.starts, "<i4") + np.frombuffer(plan.num_tokens, "<i4"))[samples]
    tokens = (positions % 1000 + 100).astype("<i4")
    result = StepResult(plan.epoch, plan.step, runs.tobytes(), positions.tobytes(), tokens.tobytes(), 0, 1)
    return msgspec.structs.replace(result, num_plans_waiting=1)


def measure(side: ArraySide | PlainSide, num_steps: int) -> tuple[list[int], list[int]]:
    """Nanoseconds of each step, and of what follows it; without the steps that still prefill."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(StepResult)
    plans = list(side.plans)
    steps_ns, deltas_ns = [], []
    for number in range(num_steps + WARM_UP_STEPS):
        encoded = encoder.encode(sample_all(plans.pop(0)))
        begun = time.process_time_ns()
        made = side.step(decoder.decode(encoded))
        for plan in made:
            encoder.encode(plan)
        planned = time.process_time_ns()
        side.collect()
        collected = time.process_time_ns()
        plans += made
        if number >= WARM_UP_STEPS:
            steps_ns.append(planned - begun)
            deltas_ns.append(collected - planned)
    return steps_ns, deltas_ns


def compare(num_rows: int, num_steps: int, num_pairs: int) -> tuple[Figures, Figures]:
    """(the scheduler, the plain loop)"""
    num_blocks = num_rows * (300 + num_steps + WARM_UP_STEPS + BLOCK_SIZE) // BLOCK_SIZE + num_rows
    sides: tuple[type[ArraySide | PlainSide], ...] = (ArraySide, PlainSide)
    times: tuple[tuple[list[int], list[int]], ...] = (([], []), ([], []))
    for _ in range(num_pairs):
        for index, make in enumerate(sides):
            side = make(make_admits(num_rows), num_blocks)
            gc.collect()
            gc.freeze()
            steps_ns, deltas_ns = measure(side, num_steps)
            gc.unfreeze()
            times[index][0].extend(steps_ns)
            times[index][1].extend(deltas_ns)
    arrays, plain = (Figures(*(statistics.median(part) / 1e3 for part in both)) for both in times)
    return arrays, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256, 1024])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    print(describe_machine())
    print("microseconds of CPU a step, medians: step + after = all")
    for num_rows in args.rows:
        arrays, plain = compare(num_rows, args.steps, args.pairs)
        print(
            f"{num_rows:5} rows  scheduler {arrays.step_us:7.1f} + {arrays.after_us:6.1f} = {arrays.all_us:7.1f}   "
            f"plain loop {plain.step_us:8.1f} + {plain.after_us:6.1f} = {plain.all_us:8.1f}   "
            f"ratio {plain.all_us / arrays.all_us:5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
