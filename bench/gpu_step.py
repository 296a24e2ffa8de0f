"""Decode steps on a GPU by the worker's runner: milliseconds, the device's idle time between them, the host's cost.

    python -m callboard.bench.gpu_step [--models llama-3.1-8b,...] [--batches 1,8,...] [--depths 2,1] [--steps 128]
        [--graphs lazy|off] [--profile] [--check] [--json FILE]

Weights are random and made on the device; every row has `--context` tokens at its first step, whose keys and values are
random too, and one more at each step. Plans are made here, as the scheduler makes them, `depth` ahead of the results.
"idle" is the time on the device between the end of a step (its tokens chosen) and the begin of the next one (its
changes taken in), by events in the stream; "host" is what the step's thread spends, by stage. The floor is what a step
must read over 4.26 TB/s, the copy bandwidth measured on an H200; vLLM's figures are those of 0.24.0 on one, 512 tokens
in and 128 out. `--check` compares two layers of each shape with plain torch first.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import torch

from ..checkpoints import ModelShape
from ..execution.device.cuda import CudaDevice
from ..execution.device.limits import RunnerLimits
from ..execution.device.pending import LaunchedStep
from ..execution.device.runner import DeviceRunner
from ..execution.device.seam import Device
from ..execution.device.start import make_operations
from ..execution.pending_step import PendingStep
from ..execution.planned_rows import PlannedRows
from ..execution.token_masks import TokenMasks
from ..kernels.device_operations import TorchOperations
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import NewRow, StepPlan
from ..models.device_decoder import DeviceDecoder
from .gpu_models import SHAPES, random_decoder, read_bytes

COPY_BANDWIDTH = 4.26e12
"""Bytes a second, read and written together, of a large copy on one H200."""
VLLM_MS = {
    "llama-3.1-8b": {1: 4.96, 8: 5.16, 32: 5.88, 64: 6.80, 128: 8.81, 256: 13.87},
    "llama-2-7b": {1: 4.65, 8: 5.31, 32: 7.28, 64: 10.11, 128: 16.13, 256: 28.78},
    "qwen3-0.6b": {1: 1.65, 8: 1.69, 32: 2.21, 64: 2.9, 128: 4.7, 256: 7.2},
}
"""Decode step; of Qwen3 the better of its own process and in-process."""
BLOCK_SIZE = 16
WARM_UP_STEPS = 8
MAX_MODEL_LEN = 704
"""So that 256 rows of a model without grouped heads fit beside it."""


@dataclass
class Measured:
    """Medians over the steps."""

    model: str
    batch: int
    depth: int
    step_ms: float
    device_ms: float
    idle_us: float
    idle_p99_us: float
    idle_share: float
    """Of the whole time."""
    floor_ms: float
    vllm_ms: float | None
    host_us: dict[str, float] = field(default_factory=dict)
    """By stage; `launch` has the others in it but for result and plan."""


class TimedRunner(DeviceRunner):
    """Marks begin and end of each decode step on the device."""

    marks: list[tuple[torch.cuda.Event, torch.cuda.Event]]

    def forward_decode(self, planned: PlannedRows, bucket: int) -> torch.Tensor:
        self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._begin.record()
        return super().forward_decode(planned, bucket)

    def sample_decode(self, step: LaunchedStep, bucket: int, kind: Hashable, masks: TokenMasks | None) -> PendingStep:
        pending = super().sample_decode(step, bucket, kind, masks)
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end.record()
        self.marks.append((self._begin, end))
        return pending


class Plans:
    """Of `batch` rows that decode; run i stands in row i."""

    def __init__(self, batch: int, context: int, vocab_size: int) -> None:
        self._batch, self._position, self._step = batch, context, 0
        self._blocks_per_row = -(-MAX_MODEL_LEN // BLOCK_SIZE)
        draw = np.random.default_rng(0)
        self._new = [
            NewRow(
                row=row,
                run=row,
                request_id=str(row),
                choice=0,
                attempt=1,
                num_prompt_tokens=context + 1,
                token_ids=draw.integers(0, vocab_size, context + 1).astype("<i4").tobytes(),
                block_ids=self._blocks(row, 0, context // BLOCK_SIZE + 1),
                sampling=SamplingParams(seed=0, temperature=0.0),
            )
            for row in range(batch)
        ]

    def next(self) -> StepPlan:
        """One token more of each row; a block where the last one is full."""
        rows = np.arange(self._batch, dtype="<i4")
        position, is_first = self._position, self._step == 0
        block_rows = rows if position % BLOCK_SIZE == 0 and not is_first else rows[:0]
        block = position // BLOCK_SIZE
        plan = StepPlan(
            epoch=1,
            step=self._step,
            now_ns=time.monotonic_ns(),
            new_rows=self._new if is_first else [],
            removed_rows=b"",
            rows=rows.tobytes(),
            runs=rows.astype("<i8").tobytes(),
            starts=np.full(self._batch, position, "<i4").tobytes(),
            num_tokens=np.ones(self._batch, "<i4").tobytes(),
            samples=np.ones(self._batch, np.bool_).tobytes(),
            block_rows=block_rows.tobytes(),
            block_ids=b"".join(self._blocks(int(row), block, block + 1) for row in block_rows),
        )
        self._step, self._position = self._step + 1, position + 1
        return plan

    def _blocks(self, row: int, first: int, end: int) -> bytes:
        return (np.arange(first, end, dtype="<i4") + row * self._blocks_per_row).tobytes()


class Stages:
    """Seconds of the host by stage, step by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def watch(self, owner: object, method: str, stage: str) -> None:
        """Time every call of a method of this object."""
        setattr(owner, method, self.timed(getattr(owner, method), stage))

    def timed(self, call: Callable[..., object], stage: str) -> Callable[..., object]:
        """`call`, with its time noted."""
        seconds = self.seconds.setdefault(stage, [])

        @wraps(call)
        def run(*args: object, **options: object) -> object:
            begin = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                seconds.append(time.perf_counter() - begin)

        return run

    def forget(self) -> None:
        """What was noted so far."""
        for seconds in self.seconds.values():
            seconds.clear()

    def microseconds_a_step(self, num_steps: int) -> dict[str, float]:
        """Sums over the steps, divided by their number."""
        return {stage: sum(seconds) * 1e6 / num_steps for stage, seconds in self.seconds.items()}


class Bench:
    """A decoder on its GPU."""

    def __init__(self, name: str, decoder: DeviceDecoder, device: Device, limits: RunnerLimits, graphs: str) -> None:
        self.name, self.shape, max_batch = name, decoder.shape, limits.max_num_seqs
        self.runner = TimedRunner(
            decoder,
            device,
            limits,
            num_blocks=max_batch * (MAX_MODEL_LEN // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            kv_dtype=torch.bfloat16,
            graphs="off" if graphs == "off" else "lazy",
        )
        self.runner.marks = []
        self.runner.pool.tensors.tensor.normal_()
        self.stages = Stages()
        self.stages.watch(self.runner.batch, "apply", "apply")
        self.stages.watch(self.runner, "forward_decode", "prepare + forward")
        self.stages.watch(self.runner.graphs, "run", "graphs")
        self._launch = self.stages.timed(self.runner.launch, "launch")

    def measure(self, batch: int, depth: int, context: int, num_steps: int) -> Measured:
        """Decode steps at `depth`, each plan made when a result is there."""
        self.runner.clear()
        plans = Plans(batch, context, self.shape.vocab_size)
        make = self.stages.timed(plans.next, "plan made")
        pending: deque[PendingStep] = deque()
        collect = self.stages.timed(lambda: pending.popleft().result(), "result, with its wait")

        def steps(number: int) -> None:
            for _ in range(number):
                while len(pending) < depth:
                    pending.append(self._launch(make()))  # type: ignore[arg-type]
                collect()

        steps(WARM_UP_STEPS)
        torch.cuda.synchronize()
        self.stages.forget()
        self.runner.marks.clear()
        begin = time.perf_counter()
        steps(num_steps)
        step_ms = (time.perf_counter() - begin) * 1e3 / num_steps
        host_us = self.stages.microseconds_a_step(num_steps)
        while pending:
            collect()
        torch.cuda.synchronize()
        marks = self.runner.marks
        idle = [1e3 * end.elapsed_time(begin) for (_, end), (begin, _) in pairwise(marks)]
        device_ms = [begin.elapsed_time(end) for begin, end in marks]
        num_bytes = read_bytes(self.shape, batch, context + WARM_UP_STEPS + num_steps / 2, 2)
        return Measured(
            model=self.name,
            batch=batch,
            depth=depth,
            step_ms=step_ms,
            device_ms=statistics.median(device_ms),
            idle_us=statistics.median(idle),
            idle_p99_us=float(np.percentile(idle, 99)),
            idle_share=sum(idle) / 1e3 / (sum(idle) / 1e3 + sum(device_ms)),
            floor_ms=num_bytes / COPY_BANDWIDTH * 1e3,
            vllm_ms=VLLM_MS.get(self.name, {}).get(batch),
            host_us=host_us,
        )

    def profile(self, batch: int, context: int) -> str:
        """Kernels of some steps by their time."""
        from torch.profiler import ProfilerActivity, profile

        self.measure(batch, 2, context, 4)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self.measure(batch, 2, context, 24)
        table: str = profiler.key_averages().table(
            sort_by="self_cuda_time_total", row_limit=24, max_name_column_width=60
        )
        return table


def limits_of(max_batch: int) -> RunnerLimits:
    """Of a bench."""
    return RunnerLimits(max_batch, max(2048, max_batch), MAX_MODEL_LEN, 2)


def make_bench(name: str, max_batch: int, graphs: str) -> Bench:
    """Of a model that one GPU holds."""
    device, limits = CudaDevice(torch.device("cuda")), limits_of(max_batch)
    there = device.torch_device
    operations = make_operations(SHAPES[name], limits.max_step_tokens, torch.bfloat16, there)
    decoder = random_decoder(SHAPES[name], operations, torch.bfloat16, there, MAX_MODEL_LEN)
    return Bench(name, decoder, device, limits, graphs)


def check(shape: ModelShape, batches: Sequence[int]) -> Iterator[str]:
    """Two layers of a shape by the kernels and by plain torch: prompts, then steps of single tokens."""
    device = CudaDevice(torch.device("cuda"))
    there = device.torch_device
    small = msgspec.structs.replace(shape, num_layers=2)
    for dtype in (torch.float32, torch.bfloat16):
        for batch in batches:
            limits = RunnerLimits(batch, max(2048, batch * 20), MAX_MODEL_LEN, 2)
            kernels = make_operations(small, limits.max_step_tokens, dtype, there)
            hidden = []
            for operations in (TorchOperations(), kernels):
                decoder = random_decoder(small, operations, dtype, there, MAX_MODEL_LEN)
                num_blocks = batch * MAX_MODEL_LEN // BLOCK_SIZE
                runner = DeviceRunner(
                    decoder,
                    device,
                    limits,
                    num_blocks=num_blocks,
                    block_size=BLOCK_SIZE,
                    kv_dtype=dtype,
                    graphs="off",
                )
                hidden.append(_hidden_states(runner, batch, small.vocab_size))
            errors = [
                float((ours - reference).norm() / reference.norm()) for reference, ours in zip(*hidden, strict=True)
            ]
            yield f"  {dtype}, {batch} rows: error of a prompt's step {errors[0]:.1e}, of a decode step {errors[1]:.1e}"


def _hidden_states(runner: DeviceRunner, batch: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32, of a step with prompts of 20 tokens, and of the next one with a token of each that was given."""
    plans = Plans(batch, 20, vocab_size)
    decode = plans.next()
    prompts = msgspec.structs.replace(
        decode,
        starts=np.zeros(batch, "<i4").tobytes(),
        num_tokens=np.full(batch, 20, "<i4").tobytes(),
        samples=np.zeros(batch, np.bool_).tobytes(),
    )
    runner.run(prompts)
    first = runner.last_hidden(20 * batch).float().clone()
    runner.run(msgspec.structs.replace(decode, new_rows=[]))
    return first, runner.last_hidden(batch).float().clone()


def lines_of(measured: Measured) -> str:
    """For a person."""
    m = measured
    vllm = f"{m.vllm_ms:6.2f}" if m.vllm_ms else "      "
    host = ", ".join(f"{stage} {us:.0f}" for stage, us in m.host_us.items())
    return (
        f"{m.model:13} {m.batch:4} rows, depth {m.depth}: {m.step_ms:7.3f} ms (device {m.device_ms:7.3f}),"
        f" vLLM {vllm}, floor {m.floor_ms:6.3f};"
        f" idle {m.idle_us:6.1f} us p50, {m.idle_p99_us:6.1f} p99, {100 * m.idle_share:5.2f} %;"
        f" host us: {host}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--batches", default="1,8,32,64,128,256")
    parser.add_argument("--depths", default="2")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=112)
    parser.add_argument("--graphs", choices=["lazy", "off"], default="lazy")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", help="numbers of rows")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    batches = [int(batch) for batch in args.batches.split(",")]
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    results = []
    for name in args.models.split(","):
        if args.check:
            print(f"{name}, two layers beside plain torch:")
            for line in check(SHAPES[name], (1, 8, 40)):
                print(line, flush=True)
        bench = make_bench(name, max(batches), args.graphs)
        for batch in batches:
            for depth in (int(depth) for depth in args.depths.split(",")):
                results.append(bench.measure(batch, depth, args.context, args.steps))
                print(lines_of(results[-1]), flush=True)
        for batch in (int(batch) for batch in (args.profile or "").split(",") if batch):
            print(bench.profile(batch, args.context), flush=True)
        del bench
        gc.collect()
        torch.cuda.empty_cache()
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
