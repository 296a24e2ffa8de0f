"""What the control plane costs a step of steady decoding, stage by stage, over real boards.

    python -m callboard.bench.control_cost [--rows 1 32 256] [--steps 400]

Scheduler and worker's ends of the boards in one process, depth 2: a result is encoded and published, read and decoded;
the scheduler applies it and makes the next plan; that is encoded and published, read and decoded; then what goes to the
tokenizer is collected. Medians, in microseconds. What the worker spends between plan and result is told by `gpu_step`.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time

import msgspec

from ..mailbox.messages.steps import StepPlan, StepResult
from ..shm_queue import BoardLayout, BoardReader, BoardWriter, close_board, create_board
from .machine import describe_machine
from .steady_decode import BLOCK_SIZE, WARM_UP_STEPS, ArraySide, make_admits, sample_all

STAGES = ("result published", "result read", "schedule", "plan published", "plan read", "collect")
_SLOTS, _SLOT_BYTES = 4, 4 << 20


class Board:
    """Both ends, and messages of one type."""

    def __init__(self, name: str, kind: type[StepPlan | StepResult]) -> None:
        layout = BoardLayout(name, 1, _SLOTS, _SLOT_BYTES, 1)
        fds = create_board(layout)
        self.writer, self.reader = BoardWriter(layout, fds), BoardReader(layout, fds, 0)
        close_board(fds)  # the ends have duplicates
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(kind)

    def publish(self, message: StepPlan | StepResult) -> None:
        self.writer.publish_nowait(self._encoder.encode(message))

    def read(self) -> StepPlan | StepResult:
        return self._decoder.decode(self.reader.receive_nowait())

    def detach(self) -> None:
        self.reader.detach()
        self.writer.detach()


def measure(num_rows: int, num_steps: int) -> dict[str, float]:
    """Stage -> median microseconds; steps that prefill are left out."""
    num_blocks = num_rows * (300 + num_steps + WARM_UP_STEPS + BLOCK_SIZE) // BLOCK_SIZE + num_rows
    side = ArraySide(make_admits(num_rows), num_blocks)
    calls, results = Board("call", StepPlan), Board("result", StepResult)
    plans, ns = list(side.plans), {stage: list[int]() for stage in STAGES}
    gc.collect()
    gc.freeze()
    try:
        for number in range(num_steps + WARM_UP_STEPS):
            result = sample_all(plans.pop(0))
            times = [time.perf_counter_ns()]
            results.publish(result)
            times.append(time.perf_counter_ns())
            found = results.read()
            times.append(time.perf_counter_ns())
            assert isinstance(found, StepResult)
            made = side.step(found)
            times.append(time.perf_counter_ns())
            for plan in made:
                calls.publish(plan)
            times.append(time.perf_counter_ns())
            for _ in made:
                read = calls.read()
                assert isinstance(read, StepPlan)
                plans.append(read)
            times.append(time.perf_counter_ns())
            side.collect()
            times.append(time.perf_counter_ns())
            if number >= WARM_UP_STEPS:
                for stage, begin, end in zip(STAGES, times, times[1:], strict=False):
                    ns[stage].append(end - begin)
    finally:
        gc.unfreeze()
        calls.detach()
        results.detach()
    return {stage: statistics.median(each) / 1e3 for stage, each in ns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    print(describe_machine(), f"{os.cpu_count()} cores")
    print("rows  " + "  ".join(f"{stage:>16}" for stage in STAGES) + "   sum, us")
    for num_rows in args.rows:
        found = measure(num_rows, args.steps)
        print(f"{num_rows:4}  " + "  ".join(f"{us:16.0f}" for us in found.values()) + f"  {sum(found.values()):8.0f}")


if __name__ == "__main__":
    main()
