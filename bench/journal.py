"""What a journal costs: microseconds and bytes a step in steady decode, beside the control plane's step, in one run.

    python -m callboard.bench.journal

The control plane's step is the scheduler actor's work without its event loop: the result is decoded, the scheduler
called, its plan encoded, called again (nothing to plan), the deltas collected and encoded, the statistics taken. It
runs in turns of `TURN` steps without and with a journal, on the same scheduler; the journal writes to a real file. The
journal's own time is also taken alone, over the same calls.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from ..journal import JournalWriter
from ..mailbox.messages.admission import Admit
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import StepPlan, StepResult
from ..scheduling import Scheduler, SchedulerLimits, WorkerAttached
from .machine import describe_machine

ROWS = (1, 64, 256, 1024)
TURN = 64
"""Steps of a turn: as many as the journal packs together."""
TURNS = 12
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
        self.calls: list[tuple[int, list[StepResult], StepPlan | None, bytes]] = []
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
        """One step; its seconds without the worker's part."""
        scheduler = self._scheduler
        data = self._results.pop(0)
        begin_s = time.perf_counter()
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
        last_ns = time.monotonic_ns()
        if journal is not None:
            journal.take(last_ns, ())
        assert scheduler.step(last_ns, ()) is None
        for deltas in scheduler.collect().deltas.values():
            self._encoder.encode(deltas)
        if journal is not None:
            journal.write_due()
        scheduler.statistics()
        seconds = time.perf_counter() - begin_s
        self.calls += [(now_ns, events, plan, encoded), (last_ns, [], None, b"")]
        self._work(plan)
        return seconds


def measure(num_rows: int, folder: Path, turns: int = TURNS) -> tuple[float, float, float, float]:
    """Microseconds of the control plane's step without and with the journal, of the journal alone; bytes a step.

    Medians over the turns.
    """
    plane = ControlPlane(num_rows)
    without, with_journal = [], []
    for turn in range(turns):
        without.append(sum(plane.step() for _ in range(TURN)) / TURN)
        writer = JournalWriter(folder / f"{num_rows}-{turn}", 1 << 30, plane.limits, time.monotonic_ns())
        with_journal.append(sum(plane.step(writer) for _ in range(TURN)) / TURN)
        writer.close()
        assert writer.failure is None
    alone, num_bytes = _alone(plane, folder / f"{num_rows}-alone")
    return statistics.median(without) * 1e6, statistics.median(with_journal) * 1e6, alone * 1e6, num_bytes


def _alone(plane: ControlPlane, stem: Path) -> tuple[float, float]:
    """Seconds and bytes a step of a journal that gets the same calls with nothing between; median over turns."""
    writer = JournalWriter(stem, 1 << 30, plane.limits, plane.calls[0][0])
    assert writer.path is not None
    size_before = writer.path.stat().st_size
    seconds = []
    for first in range(0, len(plane.calls), 2 * TURN):
        turn = plane.calls[first : first + 2 * TURN]
        begin_s = time.perf_counter()
        for now_ns, events, plan, encoded in turn:
            writer.take(now_ns, events)
            if plan is not None:
                writer.planned(plan, encoded)
            else:
                writer.write_due()
        seconds.append((time.perf_counter() - begin_s) / TURN)
    writer.close()
    num_steps = len(plane.calls) // 2
    return statistics.median(seconds), (writer.path.stat().st_size - size_before) / num_steps


def main() -> None:
    """Print a line for each number of rows."""
    print(describe_machine())
    print(f"{'rows':>5} {'control us':>11} {'+ journal us':>13} {'journal us':>11} {'share':>6} {'bytes/step':>11} ids")
    with tempfile.TemporaryDirectory() as folder:
        for num_rows in ROWS:
            without, with_journal, alone, num_bytes = measure(num_rows, Path(folder))
            print(
                f"{num_rows:>5} {without:>11.1f} {with_journal:>13.1f} {alone:>11.2f} {alone / without:>6.1%} "
                f"{num_bytes:>11.0f} {4 * num_rows}"
            )


if __name__ == "__main__":
    main()
