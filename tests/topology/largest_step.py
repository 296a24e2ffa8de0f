"""The largest step that a topology allows, run by the model of a checkpoint, and what it takes.

As a program: `largest_step.py torch|compiled SOURCE SETTING...` (each `section.key=value`) runs it in a process like a
worker's and prints JSON: the ledger, and what of it could be counted. Of the compiled step torch counts no activations.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch.profiler import ProfilerActivity, profile

from callboard.actors import (
    dtypes,
    worker,  # noqa: F401 - a worker's process has imported it
)
from callboard.actors.launch import Launch, prepare_launch
from callboard.bench.runner_here import RunnerHere
from callboard.execution.compiled_forward import CompiledForward
from callboard.execution.runner import ModelRunner
from callboard.execution.torch_forward import TorchForward
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import NewRow, StepPlan
from callboard.topology import topology_from
from callboard.topology.memory import kept_bytes_of, process_bytes_of

TAKES_MOST = SamplingParams(
    seed=1, temperature=100.0, top_p=0.999999, repetition_penalty=1.01, logprobs=20, prompt_logprobs=20
)
"""What takes the most memory in sampling: filters that leave nearly every token a candidate, penalties on every token
of the prompt, log-probabilities from before them."""


def start(path: str, source: str, settings: list[str]) -> tuple[Launch, ModelRunner]:
    """What a worker's process starts with, one thread; every block of the pool is touched."""
    flags = {"torch": frozenset(), "compiled": frozenset({"avx2", "fma", "f16c"})}[path]
    dtypes.cpu_flags = lambda: flags
    launch = prepare_launch(topology_from(source, ["process.worker.threads=1", *settings]))
    runner = RunnerHere(launch)._runner
    assert isinstance(runner.forward, {"torch": TorchForward, "compiled": CompiledForward}[path])
    runner.forward.kv.tensor.zero_()
    return launch, runner


def largest_step(launch: Launch) -> StepPlan:
    """A row that decodes at the end of its length in all rows but one; in that one a chunk that ends there."""
    scheduler, length = launch.topology.scheduler, launch.max_model_len
    num_decodes = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens) - 1
    chunk = min(scheduler.max_num_batched_tokens - num_decodes, length)
    num_tokens = [1] * num_decodes + [chunk]
    starts = [length - 1 - i % 2 for i in range(num_decodes)] + [length - chunk]
    block_size = launch.topology.kv_cache.block_size
    rng = np.random.default_rng(0)
    blocks = rng.permutation(launch.ledger.num_blocks).astype(np.int32)
    new_rows, used = [], 0
    for row, (count, first) in enumerate(zip(num_tokens, starts, strict=True)):
        known = first + count
        num_blocks = -(-known // block_size)
        ids = np.take(blocks, range(used, used + num_blocks), mode="wrap")
        used += num_blocks
        tokens = rng.integers(0, launch.shape.vocab_size, known).astype(np.int32)
        new_rows.append(NewRow(row, row, "r", 0, 0, known, tokens.tobytes(), ids.tobytes(), TAKES_MOST))
    rows = np.arange(len(num_tokens))
    return StepPlan(
        epoch=0,
        step=0,
        now_ns=0,
        new_rows=new_rows,
        removed_rows=b"",
        rows=rows.astype(np.int32).tobytes(),
        runs=rows.astype(np.int64).tobytes(),
        starts=np.array(starts, np.int32).tobytes(),
        num_tokens=np.array(num_tokens, np.int32).tobytes(),
        samples=np.ones(rows.size, np.bool_).tobytes(),
    )


def peak_tensor_bytes(run: Callable[[], object]) -> int:
    """Bytes that torch's CPU allocator has given out at once during `run`, above what it had before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = [event["args"] for event in sorted(_memory(events), key=lambda event: event["ts"])]
    before = changes[0]["Total Allocated"] - changes[0]["Bytes"]
    return max(change["Total Allocated"] for change in changes) - before


def _memory(events: list[dict]) -> list[dict]:
    return [event for event in events if event.get("name") == "[memory]" and event["args"]["Device Id"] == -1]


def peak_process_bytes(run: Callable[[], object]) -> int:
    """Private and shared memory of this process at its highest during `run`; files that are mapped do not count."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    run()
    status = Path("/proc/self/status").read_text()
    highest, file = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) for name in ("VmHWM", "RssFile"))
    return (highest - file) * 1024


def main() -> None:
    launch, runner = start(sys.argv[1], sys.argv[2], sys.argv[3:])

    def run() -> None:
        runner.clear()
        runner.run(plan)

    plan = largest_step(launch)
    ledger = launch.ledger
    process = peak_process_bytes(lambda: (run(), run()))
    arrays = runner.batch.token_ids.nbytes + runner.batch.block_table.nbytes
    counts = [row.counts for row in runner.sampler.logit_changes._rows.values() if row.counts is not None]
    arrays += sum(count.token_ids.nbytes + count.counts.nbytes for count in counts)
    fixed = process_bytes_of(("worker",), launch.shape, is_compiled=sys.argv[1] == "compiled")
    fixed += kept_bytes_of(ledger.weight_bytes, ledger.activation_bytes)
    counted = {
        "weights": (ledger.weight_bytes, runner.forward.num_weight_bytes),
        "KV cache": (ledger.kv_bytes, runner.forward.kv.tensor.nbytes),
        "activations": (ledger.activation_bytes, peak_tensor_bytes(run) + arrays),
        "process": (ledger.weight_bytes + ledger.kv_bytes + ledger.activation_bytes + fixed, process),
    }
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
