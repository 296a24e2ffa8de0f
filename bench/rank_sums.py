"""Sums over the ranks of one host: through shared memory, and by gloo, in turns.

    python -m callboard.bench.rank_sums [--ranks 2,4] [--sizes 1000,...] [--rounds 15] [--json FILE]

Ranks are processes with one compute thread each, and have both at once. Of every size there are `--rounds` rounds: so
many sums by one, then as many by the other, which begins alternates; between two sums every rank writes its tensor
anew, as a step would. Told are rank 0's medians over rounds of the time of one sum, float32, and the median of the
rounds' ratios with how many of them were above one. gloo is torch.distributed's, over the loopback device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ..execution.collectives.shared_memory import SharedMemoryCollective
from ..shm_queue.rank_region import RankRegionLayout, create_rank_region
from .machine import describe_machine

SIZES = "1000,4000,16000,64000,256000,1000000,4000000"
_SLOT_BYTES = 1 << 20
_ROUND_S = 0.02
"""About, of the faster one."""


def run_rank(
    rank: int, layout: RankRegionLayout, fd: int, meeting: str, sizes: list[int], num_rounds: int
) -> list[dict[str, float]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=layout.num_ranks)
    group = SharedMemoryCollective(layout, fd, rank)
    ways: dict[str, Callable[[Tensor], object]] = {"shared memory": group.all_reduce, "gloo": dist.all_reduce}
    results = []
    for num_bytes in sizes:
        own = torch.full((num_bytes // 4,), float(rank + 1))
        expected = torch.full_like(own, layout.num_ranks * (layout.num_ranks + 1) / 2)
        x = own.clone()
        for add in ways.values():
            x.copy_(own)
            add(x)
            assert torch.equal(x, expected)
        quick = torch.tensor([_time(group.all_reduce, x, own, 20)])
        count = max(3, min(2000, int(_ROUND_S / float(group.broadcast(quick)))))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(num_rounds):
            for name in sorted(ways, reverse=number % 2 == 1):
                times[name].append(_time(ways[name], x, own, count))
        ratios = [gloo / ours for gloo, ours in zip(times["gloo"], times["shared memory"], strict=True)]
        results.append(
            {"ranks": layout.num_ranks, "bytes": num_bytes, "count": count}
            | {f"{name}, us": statistics.median(seconds) * 1e6 for name, seconds in times.items()}
            | {"ratio": statistics.median(ratios), "rounds faster": sum(ratio > 1 for ratio in ratios)}
        )
        if rank == 0:
            print(line_of(results[-1], num_rounds), flush=True)
    group.close()
    dist.destroy_process_group()
    return results


def line_of(result: dict[str, float], num_rounds: int) -> str:
    """For a table."""
    ours, gloo = result["shared memory, us"], result["gloo, us"]
    return (
        f"| {result['ranks']} | {result['bytes']:,} | {ours:,.1f} | {gloo:,.1f} | {result['ratio']:.2f} |"
        f" {result['rounds faster']} of {num_rounds} |"
    )


def _time(add: Callable[[Tensor], object], x: Tensor, own: Tensor, count: int) -> float:
    """Seconds of one of `count` sums, the writing of x left out."""
    total = 0.0
    for _ in range(count):
        x.copy_(own)
        begin = time.perf_counter()
        add(x)
        total += time.perf_counter() - begin
    return total / count


def run_group(num_ranks: int, sizes: list[int], num_rounds: int) -> list[dict[str, float]]:
    """Each rank is a fork of this process, which has no threads yet. Returns what rank 0 measured."""
    layout = RankRegionLayout("sums", num_ranks, _SLOT_BYTES)
    fd = create_rank_region(layout)
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        pids = []
        for rank in range(num_ranks):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    results = run_rank(rank, layout, fd, meeting, sizes, num_rounds)
                    if rank == 0:
                        (Path(folder) / "results").write_text(json.dumps(results))
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        os.close(fd)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        assert statuses == [0] * num_ranks, statuses
        made: list[dict[str, float]] = json.loads((Path(folder) / "results").read_text())
        return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(describe_machine(), "torch", torch.__version__)
    print("| ranks | bytes | shared memory, us | gloo, us | ratio | rounds faster |\n|---:|---:|---:|---:|---:|---:|")
    sizes = [int(word) for word in args.sizes.split(",")]
    results = []
    for word in args.ranks.split(","):
        results += run_group(int(word), sizes, args.rounds)
    if args.json:
        args.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
