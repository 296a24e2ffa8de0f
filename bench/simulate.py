"""How much faster than real time the simulator is, on one core.

    python -m callboard.bench.simulate [TRACE ...] [--device h200] [--profile]

Each trace drives the scheduler as it is, unscaled, with the shape of Llama-3.1-8B. Prints the simulated time, from the
first arrival to the last token, the CPU time of reading and running it, and the ratio of the two.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import time
from pathlib import Path
from typing import NamedTuple

from ..simulation import Report, Roofline, find_device, kv_blocks, read_trace, report_of, simulate
from ..simulation.settings import limits_of
from .llama_shape import LLAMA_3_1_8B
from .machine import describe_machine


class Speed(NamedTuple):
    """Of one run."""

    report: Report
    cpu_s: float

    @property
    def ratio(self) -> float:
        """Simulated seconds a second of CPU."""
        return self.report.duration_s / self.cpu_s

    def line(self) -> str:
        num_steps = self.report.num_steps
        return (
            f"{self.report.all.num_complete:,} requests, {num_steps:,} steps; simulated {self.report.duration_s:,.0f} s"
            f" in {self.cpu_s:.2f} s of CPU ({1e6 * self.cpu_s / num_steps:.0f} us a step):"
            f" {self.ratio:.0f} times faster than real time"
        )


def measure(path: Path, device_name: str) -> Speed:
    """One trace, from its file to the report."""
    shape, device = LLAMA_3_1_8B, find_device(device_name)
    num_blocks = kv_blocks(shape, device, max_model_len=shape.max_position, block_size=16)
    settings = {"max_num_seqs": "256", "max_queued_requests": "1000000", "max_queued_tokens": "1000000000"}
    limits = limits_of(settings, num_blocks=num_blocks, max_model_len=shape.max_position)
    begun_s = time.process_time()
    report = report_of(simulate(read_trace(path), limits, Roofline(shape, device)))
    return Speed(report, time.process_time() - begun_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--device", default="h200")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(describe_machine())
    gc.freeze()
    for path in args.traces:
        if args.profile:
            profile = cProfile.Profile()
            profile.runcall(measure, path, args.device)
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        else:
            print(f"{path.name}: {measure(path, args.device).line()}", flush=True)


if __name__ == "__main__":
    main()
