"""Automatic draft lengths against fixed ones, on a device that is free up to a knee: scheduler and times, no model.

    python -m callboard.bench.draft_lengths [--knee 300] [--batches 1,4,16,48,96,128] [--chance 0.8] [--steps 1500]

Each draft is accepted with the same chance. A step of n tokens takes 10 ms up to the knee, and n / knee times that
beyond. Told are tokens a second with 0 to 8 drafts, with as many as the scheduler chooses, and the share of the best.
"""

from __future__ import annotations

import argparse
from collections import deque
from random import Random
from typing import NamedTuple

import numpy as np

from ..mailbox.messages.admission import Admit
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import StepPlan, StepResult
from ..scheduling.events import WorkerAttached
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler

MAX_DRAFTS = 8
_STEP_NS = 10_000_000
_PROMPT = 8


class Speed(NamedTuple):
    """Of one batch."""

    fixed: list[float]
    """Tokens a second with 0, 1, ... drafts."""
    automatic: float

    @property
    def of_best(self) -> float:
        return self.automatic / max(self.fixed)

    @property
    def of_none(self) -> float:
        return self.automatic / self.fixed[0]


class _Device:
    """Rows with a proposer that always guesses, and a clock."""

    def __init__(self, knee: int, chance: float) -> None:
        self._knee, self._chance, self._random = knee, chance, Random(1)
        self._known: dict[int, int] = {}
        self.now_ns = 0

    def run(self, plan: StepPlan) -> StepResult:
        for new in plan.new_rows:
            self._known[new.run] = len(new.token_ids) // 4
        runs = np.frombuffer(plan.runs, np.int64).tolist()
        starts, counts = np.frombuffer(plan.starts, np.int32), np.frombuffer(plan.num_tokens, np.int32)
        most = np.frombuffer(plan.max_drafts, np.int32).tolist() if plan.max_drafts else [-1] * len(runs)
        ends = np.frombuffer(plan.draft_ends, np.int32).tolist() if plan.max_drafts else [0] * len(runs)
        samples = np.frombuffer(plan.samples, np.bool_).tolist()
        positions, sampled, drafted, yielding = [], [], [], []
        num_tokens = 0
        for i, run in enumerate(runs):
            last = int(starts[i] + counts[i]) - 1 if most[i] < 0 else self._known[run] - 1
            num_drafts = 0 if most[i] < 0 else max(0, min(most[i], ends[i] - last - 1))
            num_tokens += num_drafts + (int(counts[i]) if most[i] < 0 else 1)
            if not samples[i]:
                continue
            num_accepted = 0
            while num_accepted < num_drafts and self._random.random() < self._chance:
                num_accepted += 1
            yielding.append(run)
            positions.append(last + 1)
            sampled.append(1 + num_accepted)
            drafted.append(num_drafts)
            self._known[run] = last + 2 + num_accepted
        start_ns = self.now_ns
        self.now_ns += int(_STEP_NS * max(1.0, num_tokens / self._knee))
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=np.array(yielding, np.int64).tobytes(),
            positions=np.array(positions, np.int32).tobytes(),
            token_ids=np.full(sum(sampled), 7, np.int32).tobytes(),
            start_ns=start_ns,
            end_ns=self.now_ns,
            num_sampled=np.array(sampled, np.int32).tobytes(),
            num_drafted=np.array(drafted, np.int32).tobytes() if plan.max_drafts else b"",
        )


def tokens_a_second(
    batch: int, num_drafts: int, *, is_automatic: bool, knee: int, chance: float, num_steps: int
) -> float:
    """Of `batch` endless requests, from the step on in which all of them decode."""
    length = num_steps * (1 + MAX_DRAFTS) + _PROMPT + 100
    limits = SchedulerLimits(
        max_num_seqs=batch,
        max_num_batched_tokens=8192,
        long_prefill_token_threshold=0,
        pipeline_depth=2,
        watermark=0.0,
        max_queued_requests=batch,
        max_queued_tokens=batch * _PROMPT,
        num_blocks=batch * (length // 512 + 2),
        block_size=512,
        prefix_caching=False,
        max_model_len=length,
        max_drafts=num_drafts,
        has_adaptive_drafts=is_automatic,
    )
    scheduler, device = Scheduler(limits), _Device(knee, chance)
    admits = [
        Admit(str(i), 0, 1, "t", [1] * _PROMPT, SamplingParams(seed=0, max_tokens=length), (), 0) for i in range(batch)
    ]
    plans: deque[StepPlan] = deque()
    events: list[object] = [WorkerAttached(1), *admits]
    first: tuple[int, int] | None = None
    for _ in range(num_steps):
        while (plan := scheduler.step(device.now_ns, events)) is not None:  # type: ignore[arg-type]
            plans.append(plan)
            events = []
        scheduler.collect()
        events = [device.run(plans.popleft())]
        if first is None:
            first = device.now_ns, scheduler.statistics().generation_tokens
    assert first is not None
    num_tokens = scheduler.statistics().generation_tokens - first[1]
    return num_tokens * 1e9 / (device.now_ns - first[0])


def measure(batch: int, *, knee: int, chance: float, num_steps: int) -> Speed:
    """All lengths, then the scheduler's choice."""
    fixed = [
        tokens_a_second(batch, k, is_automatic=False, knee=knee, chance=chance, num_steps=num_steps)
        for k in range(MAX_DRAFTS + 1)
    ]
    automatic = tokens_a_second(batch, MAX_DRAFTS, is_automatic=True, knee=knee, chance=chance, num_steps=num_steps)
    return Speed(fixed, automatic)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--knee", type=int, default=300)
    parser.add_argument("--batches", default="1,4,16,48,96,128")
    parser.add_argument("--chance", type=float, default=0.8)
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args()
    print(f"{'batch':>5} {'no drafts':>10} {'best fixed':>16} {'automatic':>10} {'of best':>8} {'of none':>8}")
    for batch in map(int, arguments.batches.split(",")):
        speed = measure(batch, knee=arguments.knee, chance=arguments.chance, num_steps=arguments.steps)
        best = max(speed.fixed)
        best_k = f"{best:,.0f} (K = {speed.fixed.index(best)})"
        print(
            f"{batch:>5} {speed.fixed[0]:>10,.0f} {best_k:>16} {speed.automatic:>10,.0f} "
            f"{speed.of_best:>8.3f} {speed.of_none:>8.3f}"
        )


if __name__ == "__main__":
    main()
