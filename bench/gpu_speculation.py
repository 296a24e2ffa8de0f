"""Speculation on a GPU with a proposer of known quality: scheduler and runner in one process, plans two ahead.

    python -m callboard.bench.gpu_speculation [--model llama-3.1-8b] [--batches 1,32,128] [--most 5] [--share 0.69]
        [--context 512] [--tokens 200] [--depth 2] [--json FILE]

Weights are random, but for the head and what layers add: the likeliest token behind a token is one that is drawn for
it in advance, so that a proposer can know it. It guesses each token right with `--share`, by its own dice: 3 drafts of
0.69 give 2.5 tokens a step. Every token is verified by the whole model. Told are, of each fixed number of drafts and of
the scheduler's choice (its second load: in the first it learns the times), the milliseconds of a step, tokens of a row
in a step, and the speed beside none; "expected" is 1 + share + share^2 + ... over the ratio of the steps' times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch

from ..checkpoints import ModelShape
from ..execution.device.cuda import CudaDevice
from ..execution.device.limits import RunnerLimits
from ..execution.device.runner import DeviceRunner
from ..execution.device.seam import Device
from ..execution.device.start import make_operations
from ..execution.pending_step import PendingStep
from ..mailbox.messages.admission import Admit
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import StepPlan, StepResult
from ..models.device_decoder import DeviceDecoder
from ..scheduling.events import Event, WorkerAttached
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler
from ..speculative.proposer import Int32s, ProposedDrafts
from .gpu_models import SHAPES, random_decoder

BLOCK_SIZE = 16
SKIPPED_STEPS = 8
LEAST_TOKENS = 800
"""Of all rows together: fewer have an acceptance of their own."""
ADDED = 1e-4
"""What layers add to a token's embedding is so much of what it would be."""


@dataclass
class Measured:
    """One load."""

    model: str
    batch: int
    drafts: str
    """A number, or "automatic"."""
    step_ms: float
    tokens_a_step: float
    """Of a row."""
    tokens_per_s: float
    host_us: float
    """Of the step's thread in a launch, but for the wait for the step before: with drafts the device idles so long."""


class ChainProposer:
    """Knows the token behind each token, and errs by chance."""

    def __init__(self, next_ids: Int32s, share: float, seed: int = 0) -> None:
        """next_ids: int32 [vocab_size]; share: of its guesses that are right."""
        self._next_ids, self._share = next_ids, share
        self._random = np.random.default_rng(seed)

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        """Nothing to keep."""

    def forget(self, rows: Int32s) -> None:
        """Nothing was kept."""

    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        most = int(max_drafts.max(initial=0))
        chain = np.empty((rows.size, most + 1), np.int32)
        chain[:, 0] = token_ids[rows, num_known[rows] - 1]
        for place in range(most):
            chain[:, place + 1] = self._next_ids[chain[:, place]]
        drafts = chain[:, 1:]
        is_wrong = self._random.random(drafts.shape) >= self._share
        drafts = np.where(is_wrong, (drafts + 1) % self._next_ids.size, drafts).astype(np.int32)
        return ProposedDrafts(max_drafts.copy(), drafts[np.arange(most) < max_drafts[:, None]])


def make_chain(decoder: DeviceDecoder, seed: int = 0) -> Int32s:
    """Change a random decoder's weights so that each token has a likeliest next one, far before the others; returns
    these: int32 [vocab_size]."""
    weights = decoder.weights
    next_ids = np.random.default_rng(seed).permutation(decoder.shape.vocab_size).astype(np.int32)
    for layer in weights.layers:
        layer.output.weight.mul_(ADDED)
        layer.down.weight.mul_(ADDED)
    there = torch.from_numpy(next_ids).to(decoder.device, torch.int64)
    weights.head.weight.index_copy_(0, there, weights.embedding)
    return next_ids


class Bench:
    """One model, with the longest drafts that there may be."""

    def __init__(self, name: str, shape: ModelShape, device: Device, max_batch: int, most: int, max_len: int) -> None:
        self.name, self.shape, self._max_len = name, shape, max_len
        self._limits = RunnerLimits(max_batch, 8192, max_len, 2, most)
        there = device.torch_device
        dtype = torch.bfloat16 if there.type == "cuda" else torch.float32
        operations = make_operations(shape, self._limits.max_step_tokens, dtype, there)
        with torch.inference_mode():
            self.decoder = random_decoder(shape, operations, dtype, there, max_len)
            self.next_ids = make_chain(self.decoder)
        self._blocks_per_row = -(-max_len // BLOCK_SIZE)
        self._device, self._dtype = device, dtype
        self._num_blocks = max_batch * self._blocks_per_row
        self._launching, self._waiting, self._num_launched = 0.0, 0.0, 0

    def make_runner(self, share: float) -> DeviceRunner:
        """With a pool, warmed up: kernels and graphs of the lengths that it may meet are made."""
        runner = DeviceRunner(
            self.decoder,
            self._device,
            self._limits,
            num_blocks=self._num_blocks,
            block_size=BLOCK_SIZE,
            kv_dtype=self._dtype,
            proposer=ChainProposer(self.next_ids, share),
        )
        for bucket in self._limits.buckets:
            runner.run_padding(bucket)
        for length in self._limits.draft_lengths:
            for bucket in self._limits.draft_buckets:
                runner.run_padding_with_drafts(bucket, length)
        while runner.use_idle_time():
            pass
        settle = runner._settle

        def wait() -> None:
            begin = time.perf_counter()
            settle()
            self._waiting += time.perf_counter() - begin

        runner._settle = wait  # type: ignore[method-assign]
        return runner

    def measure(
        self, runner: DeviceRunner, batch: int, drafts: int | None, context: int, num_tokens: int, depth: int
    ) -> Measured:
        """drafts: of each row in each step; None: as many as the scheduler chooses."""
        scheduler = Scheduler(
            SchedulerLimits(
                max_num_seqs=batch,
                max_num_batched_tokens=self._limits.max_num_batched_tokens,
                long_prefill_token_threshold=0,
                pipeline_depth=depth,
                watermark=0.0,
                max_queued_requests=2 * batch,
                max_queued_tokens=4 * batch * self._max_len,
                num_blocks=self._num_blocks,
                block_size=BLOCK_SIZE,
                prefix_caching=False,
                max_model_len=self._max_len,
                max_drafts=self._limits.max_drafts if drafts is None else drafts,
                has_adaptive_drafts=drafts is None,
            )
        )
        runner.clear()
        scheduler.step(time.monotonic_ns(), [WorkerAttached(1)])
        for load in range(2 if drafts is None else 1):
            results = [
                result
                for result in self._run(scheduler, runner, self._requests(load, batch, context, num_tokens))
                if len(result.runs) // 8 == batch
            ][SKIPPED_STEPS:-2]  # at the end rows have room for fewer drafts
        host_us = (self._launching - self._waiting) * 1e6 / self._num_launched
        tokens = np.array([len(result.token_ids) // 4 for result in results[1:]])
        seconds = (results[-1].end_ns - results[0].end_ns) / 1e9
        return Measured(
            model=self.name,
            batch=batch,
            drafts="automatic" if drafts is None else str(drafts),
            step_ms=seconds * 1e3 / len(tokens),
            tokens_a_step=float(tokens.mean()) / batch,
            tokens_per_s=float(tokens.sum()) / seconds,
            host_us=host_us,
        )

    def _requests(self, load: int, batch: int, context: int, num_tokens: int) -> list[Event]:
        draw = np.random.default_rng(load)
        wanted = SamplingParams(seed=0, temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        return [
            Admit(f"{load} {row}", 0, 1, "t", draw.integers(0, self.shape.vocab_size, context).tolist(), wanted, (), 0)
            for row in range(batch)
        ]

    def _run(self, scheduler: Scheduler, runner: DeviceRunner, events: Sequence[Event]) -> Iterator[StepResult]:
        self._launching, self._waiting, self._num_launched = 0.0, 0.0, 0
        plans: deque[StepPlan] = deque()
        launched: deque[PendingStep] = deque()
        while True:
            while (plan := scheduler.step(time.monotonic_ns(), events)) is not None:
                plans.append(plan)
                events = []
            scheduler.collect()
            if not plans and not launched:
                return
            begin = time.perf_counter()
            while plans:
                launched.append(runner.launch(plans.popleft()))
                self._num_launched += 1
            self._launching += time.perf_counter() - begin
            result = launched.popleft().result()
            yield result
            events = [msgspec.structs.replace(result, num_plans_waiting=len(launched))]


def table(measured: Sequence[Measured], share: float) -> Iterator[str]:
    """For a person, of one batch: none first. share: of the drafts that are right."""
    none = measured[0]
    best = max(m.tokens_per_s for m in measured if m.drafts != "automatic")
    for m in measured:
        tokens = sum(share**place for place in range(int(m.drafts) + 1)) if m.drafts.isdigit() else m.tokens_a_step
        expected = tokens * none.step_ms / m.step_ms
        yield (
            f"{m.model} {m.batch:4} rows, drafts {m.drafts:>9}: step {m.step_ms:7.3f} ms, {m.tokens_a_step:5.2f} "
            f"tokens, {m.tokens_per_s:8.0f} tokens/s, {m.tokens_per_s / none.tokens_per_s:5.2f} of none "
            f"(expected {expected:5.2f}), {m.tokens_per_s / best:6.3f} of the best; host {m.host_us:5.0f} us"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b", choices=list(SHAPES))
    parser.add_argument("--batches", default="1,32,128")
    parser.add_argument("--most", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.69)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    batches = [int(batch) for batch in args.batches.split(",")]
    lengths = [max(args.tokens, LEAST_TOKENS // batch) for batch in batches]
    device = CudaDevice(torch.device("cuda"))
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    bench = Bench(
        args.model, SHAPES[args.model], device, max(batches), args.most, args.context + max(lengths) + args.most + 1
    )
    runner = bench.make_runner(args.share)
    everything: list[Measured] = []
    for batch, length in zip(batches, lengths, strict=True):
        measured = [
            bench.measure(runner, batch, drafts, args.context, length, args.depth)
            for drafts in (*range(args.most + 1), None)
        ]
        print(*table(measured, args.share), sep="\n", flush=True)
        everything += measured
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(each) for each in everything], indent=1))


if __name__ == "__main__":
    main()
