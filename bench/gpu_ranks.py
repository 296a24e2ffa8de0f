"""Decode steps of a model that several GPUs share: milliseconds, and how much of them is exchange.

    python -m callboard.bench.gpu_ranks MODEL NUM_RANKS [--exchanges "one launch,nccl,none"] [--batches 1,8,32,128]
        [--context 512] [--steps 112] [--json FILE]

MODEL: llama-3.1-8b or llama-3-70b, with random weights in bfloat16. A process for each rank, on GPU 0, 1, ...; they
make the same plans, as the scheduler makes them, two ahead. "one launch": small sums through memory of peers, larger
ones by NCCL; "none": every rank goes on with what it has, so that what a step takes longer with an exchange is the
exchange's, waiting included. Told by rank 0, as `gpu_step` does; the floor is what a rank reads. Each line is written
to FILE as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoints.sharding import Sharding
from ..errors import DeviceFault
from ..execution.collectives.nccl import NcclCollective
from ..execution.collectives.one_shot import OneShotCollective
from ..execution.collectives.polled import PolledCollective
from ..execution.device.cuda import CudaDevice
from ..execution.device.start import make_operations
from ..models.collective import Collective
from ..models.tensor_parallel import TensorParallel
from ..shm_queue.rank_region import RankRegionLayout, create_rank_region
from .gpu_kernels.timing import device_line
from .gpu_models import random_decoder
from .gpu_step import MAX_MODEL_LEN, Bench, limits_of, lines_of
from .llama_shape import LLAMA_3_1_8B, LLAMA_3_70B

SHAPES = {"llama-3.1-8b": LLAMA_3_1_8B, "llama-3-70b": LLAMA_3_70B}
Say = Callable[[str], None]
_SLOT_BYTES = 1 << 16
_TIMEOUT_S = 280.0


class NoExchange:
    """A rank that takes its own for everybody's."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x.expand(self.size, *x.shape)

    def gather(self, x: Tensor) -> Tensor | None:
        return x.expand(self.size, *x.shape) if self.rank == 0 else None

    def broadcast(self, x: Tensor) -> Tensor:
        return x


class Exchange:
    """Whichever of several is on."""

    def __init__(self, now: Collective) -> None:
        self.now, self.rank, self.size = now, now.rank, now.size

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.now.all_reduce(x)

    def all_gather(self, x: Tensor) -> Tensor:
        return self.now.all_gather(x)

    def gather(self, x: Tensor) -> Tensor | None:
        return self.now.gather(x)

    def broadcast(self, x: Tensor) -> Tensor:
        return self.now.broadcast(x)


def run_rank(args: argparse.Namespace, group: PolledCollective) -> None:
    device = CudaDevice(torch.device("cuda", group.rank))
    there, shape, batches = device.torch_device, SHAPES[args.model], _numbers(args.batches)
    say: Say = _tell if group.rank == 0 else _nothing
    say(f"{args.model}, {group.size} ranks, {device_line()}")
    exchanges = make_exchanges(args.exchanges.split(","), group, there, say)
    limits, sharding = limits_of(max(batches)), Sharding(shape, group.size)
    exchange = Exchange(NoExchange(group.rank, group.size))
    parallel = TensorParallel(sharding, exchange, there) if group.size > 1 else None
    local = sharding.local_shape
    operations = make_operations(local, limits.max_step_tokens, torch.bfloat16, there)
    decoder = random_decoder(local, operations, torch.bfloat16, there, MAX_MODEL_LEN, parallel)
    results: list[dict[str, object]] = []
    for name, exchange.now in exchanges.items():
        bench = Bench(args.model, decoder, device, limits, "lazy")
        for batch in batches:
            bench.measure(batch, 2, args.context, 8)  # records
            while bench.runner.use_idle_time():
                pass
            group.all_gather(torch.zeros(1))
            measured = bench.measure(batch, 2, args.context, args.steps)
            measured.floor_ms /= group.size
            measured.vllm_ms = measured.vllm_ms if group.size == 1 else None  # it is of one GPU
            results.append({"exchange": name, "ranks": group.size, **asdict(measured)})
            say(f"{name:10} {lines_of(measured)}")
            if group.rank == 0 and args.json:
                args.json.write_text(json.dumps(results))
        del bench
        device.release_unused()
    tell_shares(results, say)
    torch.cuda.synchronize()
    group.all_gather(torch.zeros(1))


def make_exchanges(names: list[str], group: PolledCollective, device: torch.device, say: Say) -> dict[str, Collective]:
    """By name, in the order of the names; those that the GPUs can have."""
    none = NoExchange(group.rank, group.size)
    if group.size == 1:
        return {"none": none}
    nccl = NcclCollective(group, device)
    made: dict[str, Collective] = {}
    for name in names:
        if name == "one launch":
            try:
                made[name] = OneShotCollective(nccl, group, device)
            except DeviceFault as fault:
                say(f"{name} is left out: {fault}")
        elif name == "nccl":
            made[name] = nccl
        else:
            made[name] = none
    return made


def tell_shares(results: list[dict[str, object]], say: Say) -> None:
    """Of exchange in a step."""
    without = {result["batch"]: result["step_ms"] for result in results if result["exchange"] == "none"}
    for result in results:
        if result["exchange"] != "none" and (bare := without.get(result["batch"])) is not None:
            step_ms = result["step_ms"]
            assert isinstance(step_ms, float) and isinstance(bare, float)
            share = 100 * (1 - bare / step_ms)
            say(f"{result['exchange']}, {result['batch']} rows: {share:.1f} % of a step is exchange")


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def _tell(line: str) -> None:
    print(line, flush=True)


def _nothing(line: str) -> None:
    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("num_ranks", type=int)
    parser.add_argument("--exchanges", default="one launch,nccl,none")
    parser.add_argument("--batches", default="1,8,32,128")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=112)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    layout = RankRegionLayout("bench", args.num_ranks, _SLOT_BYTES)
    if args.rank is not None:
        group = PolledCollective(layout, args.fd, args.rank)
        with torch.inference_mode():
            run_rank(args, group)
        group.close()
        return
    fd = create_rank_region(layout)
    command = [sys.executable, "-P", "-m", "callboard.bench.gpu_ranks", *sys.argv[1:], "--fd", str(fd), "--rank"]
    ranks = [subprocess.Popen([*command, str(rank)], pass_fds=[fd]) for rank in range(args.num_ranks)]
    os.close(fd)
    try:
        sys.exit(max(rank.wait(_TIMEOUT_S) for rank in ranks))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    main()
