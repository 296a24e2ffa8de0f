"""Sampling kernels on a GPU: checked beside their torch twins, timed in a graph, printed beside what one read of the
logits takes.

    python -m callboard.bench.gpu_kernels.sampling [--rows 1,32,256] [--vocabularies 128256,151936] [--dtypes bf16,fp32]

A launch is the whole of a step's sampling, all kernels of its kind. Logits are normal with deviation 2.5: flatter than
a model's, so that filters find much around their borders. `twin us` is the same in torch, not in a graph.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...kernels.filters import kept_thresholds
from ...kernels.gpu.sampling import SamplingKind, SamplingOutputs, SamplingTensors, change_rows, sample_rows
from ...kernels.gpu.sampling_rows import Column, Flag, SamplingWorkspace, encode_parameters
from ...kernels.logprobs import gather_logprobs
from ...kernels.sampling import SamplingBatch, process_temperature, sample
from .timing import COPY_BYTES_PER_S, device_line, microseconds_each

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
CACHE_BYTES = 200e6
"""Logits of a graph's launches together, at least, up to `MAX_SETS` of them: more than the second-level cache holds."""
MAX_SETS = 40
NUM_TOP = 5


@dataclass(frozen=True)
class Case:
    """What all rows of a step ask for."""

    name: str
    kind: SamplingKind
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    is_penalized: bool = False
    wants_logprobs: bool = False


DRAWS = SamplingKind(has_draws=True)
FILTERED = SamplingKind(has_draws=True, has_filters=True)
CASES = [
    Case("greedy", SamplingKind(), temperature=0.0),
    Case("temperature", DRAWS),
    Case("top_k 50", FILTERED, top_k=50),
    Case("top_p 0.9", FILTERED, top_p=0.9),
    Case("min_p 0.05", FILTERED, min_p=0.05),
    Case("all filters", FILTERED, top_k=50, top_p=0.9, min_p=0.05),
    Case(
        "penalties",
        SamplingKind(has_changes=True, has_penalties=True),
        temperature=0.0,
        is_penalized=True,
    ),
    Case("greedy, 5 logprobs", SamplingKind(has_logprobs=True), temperature=0.0, wants_logprobs=True),
]


class Step:
    """A step of n rows of one case, over logits of its own."""

    def __init__(self, case: Case, logits: Tensor, tensors: SamplingTensors, workspace: SamplingWorkspace) -> None:
        n = logits.shape[0]
        self.case, self.logits, self.tensors, self.workspace = case, logits, tensors, workspace
        self.outputs = SamplingOutputs(n, logits.device)
        self.rows = torch.arange(n, dtype=torch.int32, device=logits.device).flip(0)
        self.positions = torch.arange(n, device=logits.device) + 700

    def run(self) -> None:
        if self.case.kind.has_changes:
            change_rows(self.logits, self.rows, self.tensors)
        sample_rows(
            self.logits, self.rows, self.positions, self.case.kind, self.tensors, self.workspace, self.outputs
        )  # fmt: skip


def parameters(case: Case, n: int) -> Tensor:
    """int32 [n, NUM_COLUMNS] on the host; seeds are the rows."""
    with np.errstate(divide="ignore"):
        columns = {
            Column.TEMPERATURE: np.full(n, case.temperature),
            Column.TOP_K: np.full(n, case.top_k),
            Column.TOP_P: np.full(n, case.top_p),
            Column.MIN_LOGIT: np.log(np.full(n, case.min_p, np.float32)),
            Column.SEED_LOW: np.arange(n),
            Column.NUM_TOP: np.full(n, NUM_TOP if case.wants_logprobs else -1),
            Column.FLAGS: np.full(n, (Flag.CHANGED | Flag.PENALIZED) * case.is_penalized),
            Column.REPETITION: np.full(n, 1.2),
            Column.FREQUENCY: np.full(n, 0.1),
        }
    return torch.from_numpy(encode_parameters(n, columns))


def twin_batch(case: Case, step: Step) -> SamplingBatch:
    n, device = step.logits.shape[0], step.logits.device
    return SamplingBatch(
        temperature=torch.full((n,), case.temperature, device=device),
        top_k=torch.full((n,), case.top_k, device=device),
        top_p=torch.full((n,), case.top_p, device=device),
        min_p=torch.full((n,), case.min_p, device=device),
        seeds=step.rows.long(),
        indexes=step.positions + 1,
        choices=torch.zeros(n, dtype=torch.int64, device=device),
    )


def check(step: Step) -> str:
    """Beside the twin: rows with another token, tokens kept by one only, the largest error of log-probabilities."""
    case, logits, batch = step.case, step.logits.float(), twin_batch(step.case, step)
    step.tensors.counts.zero_()
    step.run()
    found = []
    if not case.is_penalized:  # nothing is counted yet
        other = step.outputs.tokens.long() != sample(logits, None if case.temperature == 0 else batch)
        found.append(f"{int(other.sum())} tokens")
    else:
        found.append(f"{int((step.outputs.tokens.long() != logits.argmax(1)).sum())} tokens")
    if case.kind.has_filters:
        processed = process_temperature(logits, batch.temperature)
        expected = processed >= kept_thresholds(processed, batch.top_k, batch.top_p, batch.min_p)[:, None]
        found.append(f"{int(((processed >= step.workspace.thresholds[: len(logits), None]) != expected).sum())} kept")
    if case.wants_logprobs:
        chosen, _, top = gather_logprobs(logits, step.outputs.tokens.long(), NUM_TOP)
        error = max(
            float((step.outputs.logprobs - chosen).abs().max()),
            float((step.outputs.top_logprobs[:, :NUM_TOP] - top).abs().max()),
        )
        found.append(f"error {error:.0e}")
    return ", ".join(found)


def twin_microseconds(step: Step) -> float:
    """The twin's time with all its launches and waits; the best of three."""
    case, batch = step.case, twin_batch(step.case, step)

    def run() -> None:
        tokens = sample(step.logits.float(), None if case.temperature == 0 else batch)
        if case.wants_logprobs:
            gather_logprobs(step.logits.float(), tokens, NUM_TOP)

    return min(_seconds(run) for _ in range(3)) * 1e6


def _seconds(run: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def table(n: int, vocab_size: int, dtype_name: str, names: list[str]) -> None:
    device, dtype = torch.device("cuda", 0), DTYPES[dtype_name]
    num_bytes = n * vocab_size * dtype.itemsize
    sets = max(2, min(MAX_SETS, int(CACHE_BYTES / num_bytes) + 1))
    all_logits = [(torch.randn(n, vocab_size, device=device) * 2.5).to(dtype) for _ in range(sets)]
    tensors = SamplingTensors.make(n, n, vocab_size, 16, device)
    workspace = SamplingWorkspace(n, vocab_size, device)
    floor = num_bytes / COPY_BYTES_PER_S * 1e6
    for case in CASES:
        if names and not any(case.name.startswith(name) for name in names):
            continue
        tensors.table.copy_(parameters(case, n))
        steps = [Step(case, logits, tensors, workspace) for logits in all_logits]
        found = check(steps[0])
        beside = f"{twin_microseconds(steps[0]):10.0f}" if not case.is_penalized else " " * 10
        time_us = microseconds_each([partial(Step.run, step) for step in steps])
        print(
            f"{n:>4} {vocab_size:>7} {dtype_name} {case.name:<20}{time_us:9.2f}{floor:9.2f}{beside}  {found}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Sampling kernels on a GPU: checked and timed.")
    parser.add_argument("cases", nargs="*", help="beginnings of the cases' names; none: all")
    parser.add_argument("--rows", default="1,32,256")
    parser.add_argument("--vocabularies", default="128256,151936")
    parser.add_argument("--dtypes", default="bf16,fp32")
    arguments = parser.parse_args()
    print(device_line())
    print(f"rows   vocab dtype {'sampling':<19}{'us':>9}{'floor':>9}{'twin us':>10}  other than the twin")
    torch.manual_seed(0)
    with torch.inference_mode():
        for dtype_name in arguments.dtypes.split(","):
            for vocab_size in map(int, arguments.vocabularies.split(",")):
                for n in map(int, arguments.rows.split(",")):
                    table(n, vocab_size, dtype_name, arguments.cases)


if __name__ == "__main__":
    main()
