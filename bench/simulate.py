"""How much faster than real time the simulator is, on one core.

    python -m callboard.bench.simulate [TRACE ...] [--device h200] [--profile]

Each trace drives the scheduler as it is, unscaled, with the shape of Llama-3.1-8B. Prints the simulated time, from the
first arrival to the last token, the CPU time of reading and running it, and the ratio of the trace's own length (first
to last arrival) to that CPU time.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import time
from pathlib import Path

from ..simulation import Roofline, find_device, kv_blocks, read_trace, report_of, simulate
from ..simulation.settings import limits_of
from .llama_shape import LLAMA_3_1_8B
from .machine import describe_machine


def run(path: Path, device_name: str) -> str:
    """One line about one trace."""
    shape, device = LLAMA_3_1_8B, find_device(device_name)
    num_blocks = kv_blocks(shape, device, max_model_len=shape.max_position, block_size=16)
    settings = {"max_num_seqs": "256", "max_queued_requests": "1000000", "max_queued_tokens": "1000000000"}
    limits = limits_of(settings, num_blocks=num_blocks, max_model_len=shape.max_position)
    begun = time.process_time()
    trace = read_trace(path)
    report = report_of(simulate(trace, limits, Roofline(shape, device)))
    cpu_s = time.process_time() - begun
    span_s = (trace[-1].arrival_ns - trace[0].arrival_ns) / 1e9
    return (
        f"{path.name}: {report.all.num_complete:,} requests, {report.num_steps:,} steps; arrivals over {span_s:,.0f} s,"
        f" simulated {report.duration_s:,.0f} s in {cpu_s:.2f} s of CPU ({1e6 * cpu_s / report.num_steps:.0f} us a step):"
        f" {span_s / cpu_s:.0f} times faster than real time"
    )


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
            print(profile.runcall(run, path, args.device))
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        else:
            print(run(path, args.device), flush=True)


if __name__ == "__main__":
    main()
