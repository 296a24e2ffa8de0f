"""What a journal costs: microseconds of CPU and bytes a step in steady decode, beside two measures of a step.

    python -m callboard.bench.journal

**The scheduler's step** is the scheduler actor's work without its event loop: the result is decoded, the scheduler
called, its plan encoded, the deltas collected and encoded, the statistics taken. It runs in turns of `TURN` steps
without and with a journal, on the same scheduler; the journal writes to a real file. The journal's own time is also
taken alone, over the same calls.

**The control plane's step** is all that the control process does for one: that, and the event loop, mailboxes,
tokenizer, texts, HTTP and SSE. It is taken from running engines, see `journal_in_engine`.

That a journal costs less than 2 % of a step is said of the control plane's; of the scheduler's own it is more, as
printed.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from ..journal.writer import BATCH_CALLS, JournalWriter
from ..mailbox.messages.admission import Admit
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import StepPlan, StepResult
from ..scheduling.events import WorkerAttached
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler
from .journal_in_engine import running_engines
from .machine import describe_machine

ROWS = (1, 16, 64, 256, 1024)
STREAMS = (1, 16, 64)
TURN = BATCH_CALLS
"""Steps of a turn: as many as the journal packs together."""
TURNS = 8
PROMPT_TOKENS = 64


class ControlPlane:
    """Steady decode of `num_rows` requests at depth 2, as the actor does it."""

    def __init__(self, num_rows: int) -> None:
        self.limits = SchedulerLimits(
            max_num_seqs=num_rows,
            max_num_batched_tokens=max(2048, num_rows * PROMPT_TOKENS),
            long_prefill_token_threshold=0,
            pipeline_depth=2,
            watermark=0.01,
            max_queued_requests=num_rows,
            max_queued_tokens=1 << 30,
            num_blocks=num_rows * 256,
            block_size=16,
            prefix_caching=True,
            max_model_len=8192,
        )
        self.calls: list[tuple[int, list[StepResult], StepPlan, bytes]] = []
        """Of all steps that were timed."""
        self._scheduler = Scheduler(self.limits)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StepResult)
        self._results: list[bytes] = []
        self._scheduler.step(time.monotonic_ns(), [WorkerAttached(1)])
        admits = [self._admit(index) for index in range(num_rows)]
        plan = self._scheduler.step(time.monotonic_ns(), admits)
        while plan is not None:
            self._work(plan)
            plan = self._scheduler.step(time.monotonic_ns(), ())
        for _ in range(8):
            self.step()
        self.calls.clear()

    def _admit(self, index: int) -> Admit:
        sampling = SamplingParams(seed=index, max_tokens=1 << 20, ignore_eos=True)
        prompt = [index % 1000, *range(PROMPT_TOKENS - 1)]
        return Admit(f"request-{index}", 0, 1, "tokenizer", prompt, sampling, (0,), time.monotonic_ns())

    def _work(self, plan: StepPlan) -> None:
        """The worker's part; not timed."""
        ends = np.frombuffer(plan.starts, "<i4") + np.frombuffer(plan.num_tokens, "<i4")
        is_sampled = np.frombuffer(plan.samples, np.bool_)
        runs = np.frombuffer(plan.runs, "<i8")[is_sampled]
        tokens = np.full(len(runs), 1234, "<i4")
        now_ns = time.monotonic_ns()
        times = (now_ns - 14_000_000, now_ns)
        result = StepResult(
            plan.epoch, plan.step, runs.tobytes(), ends[is_sampled].astype("<i4").tobytes(), tokens.tobytes(), *times
        )
        self._results.append(self._encoder.encode(result))

    def step(self, journal: JournalWriter | None = None) -> float:
        """One step; its seconds of CPU without the worker's part."""
        scheduler = self._scheduler
        data = self._results.pop(0)
        begin_s = time.process_time()
        result = self._decoder.decode(data)
        now_ns = time.monotonic_ns()
        events = [result]
        if journal is not None:
            journal.take(now_ns, events)
        plan = scheduler.step(now_ns, events)
        assert plan is not None
        encoded = self._encoder.encode(plan)
        if journal is not None:
            journal.planned(plan, encoded)
        assert not scheduler.can_plan
        for deltas in scheduler.collect().deltas.values():
            self._encoder.encode(deltas)
        if journal is not None:
            journal.write_due()
        scheduler.statistics()
        seconds = time.process_time() - begin_s
        self.calls.append((now_ns, events, plan, encoded))
        self._work(plan)
        return seconds


class JournalCost(msgspec.Struct, frozen=True):
    """A step's microseconds of CPU, medians over the turns, and what it leaves in the file."""

    without_us: float
    """The scheduler's step."""
    with_us: float
    journal_us: float
    """The journal alone."""
    num_bytes: float


def measure(num_rows: int, folder: Path, turns: int = TURNS) -> JournalCost:
    """Of a scheduler alone with so many running requests."""
    plane = ControlPlane(num_rows)
    without, with_journal = [], []
    for turn in range(turns):
        without.append(sum(plane.step() for _ in range(TURN)) / TURN)
        writer = JournalWriter(folder / f"{num_rows}-{turn}", 1 << 30, plane.limits, time.monotonic_ns())
        with_journal.append(sum(plane.step(writer) for _ in range(TURN)) / TURN)
        writer.close()
        assert writer.failure is None
    alone, num_bytes = _alone(plane, folder / f"{num_rows}-alone")
    medians = statistics.median(without) * 1e6, statistics.median(with_journal) * 1e6
    return JournalCost(*medians, alone * 1e6, num_bytes)


def _alone(plane: ControlPlane, stem: Path) -> tuple[float, float]:
    """Seconds and bytes a step of a journal that gets the same calls with nothing between, each turn written at its
    end; median over turns."""
    writer = JournalWriter(stem, 1 << 30, plane.limits, plane.calls[0][0])
    assert writer.path is not None
    size_before = writer.path.stat().st_size
    seconds = []
    for first in range(0, len(plane.calls), TURN):
        begin_s = time.process_time()
        for now_ns, events, plan, encoded in plane.calls[first : first + TURN]:
            writer.take(now_ns, events)
            writer.planned(plan, encoded)
            writer.write_due()
        writer.flush()
        seconds.append((time.process_time() - begin_s) / TURN)
    writer.close()
    num_bytes = writer.path.stat().st_size - size_before
    return statistics.median(seconds), num_bytes / len(plane.calls)


def main() -> None:
    """Print a line for each number of rows, then one for each number of streams."""
    print(describe_machine())
    print(f"load of the machine {os.getloadavg()[0]:.1f}\n\nthe scheduler's step")
    print(f"{'rows':>7} {'step us':>9} {'+ journal us':>13} {'journal us':>11} {'share':>6} {'bytes/step':>11} ids")
    journal_us = {}
    with tempfile.TemporaryDirectory() as folder:
        for num_rows in sorted({*ROWS, *STREAMS}):
            cost = measure(num_rows, Path(folder))
            journal_us[num_rows] = cost.journal_us
            print(
                f"{num_rows:>7} {cost.without_us:>9.1f} {cost.with_us:>13.1f} {cost.journal_us:>11.2f} "
                f"{cost.journal_us / cost.without_us:>6.1%} {cost.num_bytes:>11.0f} {4 * num_rows}",
                flush=True,
            )
    print("\nthe control plane's step: CPU of the control process; the claim of less than 2 % is about this one")
    print(f"{'streams':>7} {'step us':>9} {'+ journal us':>13} {'journal us':>11} {'share':>6}  with - without, pairs")
    with running_engines() as engines:
        for num_streams in STREAMS:
            control = engines.measure(num_streams)
            alone_us = journal_us[num_streams]
            print(
                f"{num_streams:>7} {control.median_us:>9.0f} {statistics.median(control.with_us):>13.0f} "
                f"{alone_us:>11.2f} {alone_us / control.median_us:>6.2%}  {control.differences()}",
                flush=True,
            )


if __name__ == "__main__":
    main()
