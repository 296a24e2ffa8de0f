"""What ranks on GPUs exchange: checked, in graphs too, and timed.

    python -m callboard.bench.gpu_collectives alone           one GPU: NCCL with one rank, captured in a graph
    python -m callboard.bench.gpu_collectives shared [N ...]  one GPU: N ranks on it (2 and 4), sums in one launch
    python -m callboard.bench.gpu_collectives peers [N]       N GPUs: both, checked, and their times from 8 kB to 16 MB

Ranks are processes of this one; they meet through memory of the host. `shared` shows that sums are right, not how long
they take: the GPU gives its ranks turns. Times are medians of graphs of 20 sums in a row, in bfloat16, on rank 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import DeviceFault, StartFailed
from ..execution.collectives.nccl import NcclCollective
from ..execution.collectives.one_rank import OneRank
from ..execution.collectives.one_shot import OneShotCollective
from ..execution.collectives.polled import PolledCollective
from ..models.collective import Collective
from ..shm_queue.rank_region import RankRegionLayout, create_rank_region
from .gpu_kernels.timing import device_line, microseconds_each

SIZES = [8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, 1_000_000, 2_000_000, 4_000_000, 16_000_000]
"""Bytes."""
SUMS_IN_A_GRAPH = 20
_SLOT_BYTES = 1 << 16
T = TypeVar("T")
_CASES = [
    (torch.float32, 1),
    (torch.bfloat16, 1023),
    (torch.float32, 2049),
    (torch.float16, 12_293),
    (torch.bfloat16, 4096),
    (torch.bfloat16, 300_001),
]


def alone() -> None:
    """NCCL with a world of one: initialised, captured, replayed, checked."""
    device = torch.device("cuda", 0)
    nccl = NcclCollective(OneRank(), device)
    print(f"NCCL {nccl.version}, one rank, {device_line()}", flush=True)
    x, total = (torch.zeros(4096, dtype=torch.bfloat16, device=device) for _ in range(2))

    def step() -> tuple[Tensor, Tensor, Tensor | None]:
        nccl.sum_to(x * 2, total)
        shifted = nccl.broadcast(total + 1)
        return shifted, nccl.all_gather(shifted), nccl.gather(shifted)

    replay, (shifted, everybodys, gathered) = _captured(step)
    assert gathered is not None
    for number in range(100):
        x.fill_(number)
        replay()
        expected = torch.full_like(x, 2 * number + 1)
        assert torch.equal(shifted, expected), number
        assert torch.equal(everybodys, expected[None]) and torch.equal(gathered, expected[None]), number
    print("captured in a graph and replayed 100 times: sum, broadcast, all_gather and gather are right", flush=True)
    for num_bytes in (8_000, 512_000, 16_000_000):
        parts = [torch.zeros(2, num_bytes // 2, dtype=torch.bfloat16, device=device) for _ in range(SUMS_IN_A_GRAPH)]
        us = microseconds_each([lambda part=part: nccl.sum_to(part[0], part[1]) for part in parts])  # type: ignore[misc]
        print(f"  sum of {num_bytes:>10,} bytes, from one tensor to another: {us:8.1f} us", flush=True)
    nccl.close()


def one_shot_on_one_gpu(group: PolledCollective) -> None:
    """All ranks on GPU 0."""
    device = torch.device("cuda", 0)
    sums = OneShotCollective(OneRank(), group, device, max_bytes=1 << 30)
    _check(sums, group, device)
    torch.cuda.synchronize()
    group.broadcast(torch.zeros(1))
    sums.close()
    if group.rank == 0:
        print(f"  {group.size} ranks on one GPU: {len(_CASES)} sizes, eager and in a graph, are right", flush=True)


def peers(group: PolledCollective) -> None:
    """Each rank on a GPU of its own."""
    device = torch.device("cuda", group.rank)
    torch.cuda.set_device(device)
    nccl = NcclCollective(group, device)
    say = print if group.rank == 0 else _nothing
    say(f"NCCL {nccl.version}, {group.size} ranks, {device_line()}")
    _check(nccl, group, device)
    say("NCCL: sums are right, eager and in a graph")
    results = {"nccl": _times(nccl)}
    say("NCCL, us: " + _row(results["nccl"]))
    _write(group, results)
    try:
        sums = OneShotCollective(nccl, group, device, max_bytes=1 << 30)
    except (DeviceFault, StartFailed) as error:
        say(f"no memory of peers: {error}")
        return
    _check(sums, group, device)
    say("one launch: sums are right, eager and in a graph")
    results["one launch"] = _times(sums)
    say("one launch, us: " + _row(results["one launch"]))
    _write(group, results)
    torch.cuda.synchronize()
    group.broadcast(torch.zeros(1))
    sums.close()
    nccl.close()


def _check(sums: Collective, group: Collective, device: torch.device) -> None:
    """Beside the sum in float64 of integers, which is exact; the host's group says what the others have."""
    for case, (dtype, size) in enumerate(_CASES):
        draw = torch.Generator().manual_seed(100 * case + sums.rank)
        rounds = torch.randint(-30, 31, (8, size), generator=draw).to(dtype)
        expected = [group.all_gather(part).double().sum(0).to(device, dtype) for part in rounds]
        x = rounds[0].to(device)
        assert torch.equal(sums.all_reduce(x.clone()), expected[0]), (dtype, size)
        replay, summed = _captured(lambda x=x: sums.all_reduce(x * 1))  # type: ignore[misc]
        for part, total in zip(rounds, expected, strict=True):
            x.copy_(part)
            replay()
            assert torch.equal(summed, total), (dtype, size)


def _times(sums: Collective) -> dict[int, float]:
    """Microseconds by bytes."""
    found = {}
    for num_bytes in SIZES:
        x = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device="cuda")
        found[num_bytes] = microseconds_each([lambda x=x: sums.all_reduce(x)] * SUMS_IN_A_GRAPH)  # type: ignore[misc]
    return found


def _captured(body: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """(what replays the body, what it returned when it was recorded); it has run twice before."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            body()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        returned = body()
    return graph.replay, returned


def _row(times: dict[int, float]) -> str:
    return ", ".join(f"{num_bytes:,}: {us:.1f}" for num_bytes, us in times.items())


def _write(group: Collective, results: object) -> None:
    if group.rank == 0 and (out := os.environ.get("OUT")):
        (Path(out) / "collectives.json").write_text(json.dumps(results))


def _nothing(*_words: object) -> None:
    return


def run_ranks(work: str, num_ranks: int, timeout_s: float) -> list[int]:
    """Statuses of the ranks: `work` is the name of a function here."""
    layout = RankRegionLayout("bench", num_ranks, _SLOT_BYTES)
    fd = create_rank_region(layout)
    command = [sys.executable, "-P", "-m", "callboard.bench.gpu_collectives", "rank", work, str(fd), str(num_ranks)]
    ranks = [subprocess.Popen([*command, str(rank)], pass_fds=[fd]) for rank in range(num_ranks)]
    os.close(fd)
    try:
        return [rank.wait(timeout_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def main() -> None:
    what, *words = sys.argv[1:]
    if what == "alone":
        alone()
    elif what == "shared":
        for num_ranks in [int(word) for word in words] or [2, 4]:
            print(num_ranks, "ranks:", run_ranks("one_shot_on_one_gpu", num_ranks, 120.0), flush=True)
    elif what == "peers":
        num_ranks = int(words[0]) if words else torch.cuda.device_count()
        print(num_ranks, "ranks:", run_ranks("peers", num_ranks, 200.0), flush=True)
    else:
        work, fd, size, rank = words
        layout = RankRegionLayout("bench", int(size), _SLOT_BYTES)
        group = PolledCollective(layout, int(fd), int(rank))
        {"one_shot_on_one_gpu": one_shot_on_one_gpu, "peers": peers}[work](group)
        group.close()


if __name__ == "__main__":
    main()
