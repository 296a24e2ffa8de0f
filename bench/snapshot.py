"""What a snapshot of the scheduler costs: each file of a journal but the first begins with one.

    python -m callboard.bench.snapshot

The state is that of a full engine after a long time: all rows run, the queue is long, every block has a key, and the
books of ended requests are full.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from ..journal.plan_rows import expected_rows
from ..mailbox.messages.admission import Admit
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import StepPlan, StepResult
from ..scheduling.events import Event, WorkerAttached
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler
from .machine import describe_machine

ROWS, WAITING, BLOCKS = 256, 1000, 20_000
PROMPT_TOKENS, ENDED, TURNS = 512, 17_000, 9


def full_scheduler() -> Scheduler:
    """256 requests run, 1,000 wait, 17,000 have ended."""
    scheduler = Scheduler(
        SchedulerLimits(
            max_num_seqs=ROWS,
            max_num_batched_tokens=8192,
            long_prefill_token_threshold=0,
            pipeline_depth=1,
            watermark=0.0,
            max_queued_requests=1 << 20,
            max_queued_tokens=1 << 30,
            num_blocks=BLOCKS,
            block_size=16,
            prefix_caching=True,
            max_model_len=8192,
        )
    )
    plan = scheduler.step(1, [WorkerAttached(1), *(_admit(f"ended-{n}", n, 17, 1) for n in range(ENDED))])
    _run(scheduler, plan, 1 << 30)
    plan = scheduler.step(1, [_admit(f"live-{n}", n, PROMPT_TOKENS, 1 << 20) for n in range(ROWS + WAITING)])
    _run(scheduler, plan, 60)
    return scheduler


def _admit(name: str, first: int, num_tokens: int, max_tokens: int) -> Admit:
    prompt = [first, *range(num_tokens - 1)]
    return Admit(name, 0, 1, "tokenizer", prompt, SamplingParams(seed=1, max_tokens=max_tokens), (0,), 1)


def _run(scheduler: Scheduler, plan: StepPlan | None, num_steps: int) -> None:
    """So many steps, or until nothing runs."""
    while plan is not None and num_steps:
        runs, positions = expected_rows(plan)
        tokens = np.full(len(runs) // 8, 1234, "<i4").tobytes()
        events: list[Event] = [StepResult(plan.epoch, plan.step, runs, positions, tokens, 1, 1)]
        plan = scheduler.step(1, events)
        while scheduler.collect().has_more:
            pass
        num_steps -= 1


def main() -> None:
    """Print medians."""
    print(describe_machine())
    scheduler = full_scheduler()
    state = scheduler.statistics()
    take_s, restore_s, data = [], [], b""
    for _ in range(TURNS):
        begin_s = time.perf_counter()
        data = scheduler.snapshot()
        taken_s = time.perf_counter()
        Scheduler.restore(scheduler.limits, data)
        take_s.append(taken_s - begin_s)
        restore_s.append(time.perf_counter() - taken_s)
    print(
        f"{state.num_running:,} running, {state.num_waiting:,} waiting, {BLOCKS:,} blocks, "
        f"{state.num_finished:,} ended: "
        f"{len(data):,} bytes, taken in {statistics.median(take_s) * 1e3:.1f} ms, "
        f"restored in {statistics.median(restore_s) * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    main()
