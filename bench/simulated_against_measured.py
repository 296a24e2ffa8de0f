"""A real engine against its simulation: step times fitted from the journal of one load, checked on another.

    python -m callboard.bench.simulated_against_measured [MODEL] [--seconds S] [--fit RATE IN OUT] [--check RATE IN OUT]

Both loads are Poisson arrivals of greedy streams; prompts are random ids, so nothing is a prefix hit; lengths lie
evenly between half and one and a half of those named. The first load's journal is fitted. The second is measured by the
client, and simulated from the times at which its requests were sent. Prints both and the difference; exit code 1 if the
median of TTFT or TPOT is off by more than 10 %.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from ..cli.simulate_fit import Recorded, read_recorded
from ..journal.files import files_of
from ..simulation import TraceRequest, simulate
from ..simulation.report import tpot_ns, ttft_ns
from ..simulation.tables import aligned, milliseconds
from .machine import describe_machine
from .open_loop import LoadGenerator, Outcome, completion_request, poisson_arrivals
from .overlap import DEMO_MODEL
from .server_process import ServerProcess

VOCABULARY = 40_000
NUM_WARM_UPS = 4
MAX_ERROR = 0.1
PERCENTILES = (50, 90, 99)


class Load(msgspec.Struct, frozen=True):
    """Requests per second, and mean lengths in tokens."""

    rate_per_s: float
    input_len: int
    output_len: int

    def requests(self, seconds: float, seed: int) -> list[TraceRequest]:
        """When they are due, and how long they are."""
        draw = random.Random(seed)
        return [
            TraceRequest(round(at_s * 1e9), _around(draw, self.input_len), max(2, _around(draw, self.output_len)))
            for at_s in poisson_arrivals(self.rate_per_s, seconds, seed)
        ]


class Measured(msgspec.Struct, frozen=True):
    """One load on a real engine."""

    trace: list[TraceRequest]
    """With the times at which the requests were sent."""
    outcomes: list[Outcome]
    recorded: Recorded


class Comparison(msgspec.Struct, frozen=True):
    """Of the second load, milliseconds: TTFT and TPOT by percentile."""

    measured: dict[str, tuple[float, ...]]
    simulated: dict[str, tuple[float, ...]]
    fit: list[str]

    def error(self, name: str) -> float:
        """Of the median, relative."""
        return self.simulated[name][0] / self.measured[name][0] - 1

    def lines(self) -> list[str]:
        """For a person."""
        rows = [["ms", *(f"{name} p{q}" for name in self.measured for q in PERCENTILES)]]
        for label, found in (("measured", self.measured), ("simulated", self.simulated)):
            rows.append([label, *(milliseconds(value) for name in found for value in found[name])])
        errors = ", ".join(f"{name} {self.error(name):+.1%}" for name in self.measured)
        return [*self.fit, *aligned(rows), f"error of the median: {errors}"]


def _around(draw: random.Random, length: int) -> int:
    return draw.randint(max(1, length // 2), length * 3 // 2)


def run_load(model: str, load: Load, seconds: float, seed: int) -> Measured:
    """Start an engine with a journal, warm it up, send the load, stop it."""
    trace, draw = load.requests(seconds, seed), random.Random(seed + 1)
    bodies = [_body(draw, request) for request in trace]
    warm_ups = [_body(draw, TraceRequest(0, load.input_len, load.output_len)) for _ in range(NUM_WARM_UPS)]

    async def send(url: str) -> list[Outcome]:
        async with LoadGenerator(url) as generator:
            await generator.closed_loop(warm_ups, 2)
            return await generator.open_loop(bodies, [request.arrival_ns / 1e9 for request in trace])

    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        with ServerProcess(model, "--set", f"journal.path={journal}") as server:
            outcomes = asyncio.run(send(server.url))
            server.terminate()
            server.wait()
        recorded = read_recorded([path for _, path in sorted(files_of(journal).items())])
    if any(outcome.status != 200 for outcome in outcomes):
        raise RuntimeError("a request was refused: the load is too high for this machine")
    sent = [
        msgspec.structs.replace(request, arrival_ns=request.arrival_ns + round(outcome.late_s * 1e9))
        for request, outcome in zip(trace, outcomes, strict=True)
    ]
    return Measured(sent, outcomes, recorded)


def _body(draw: random.Random, request: TraceRequest) -> bytes:
    prompt = [draw.randrange(100, VOCABULARY) for _ in range(request.num_prompt_tokens)]
    return completion_request(prompt, request.num_output_tokens)


def compare(model: str, fitted: Load, checked: Load, seconds: float) -> Comparison:
    """Fit on one load, check on the other."""
    recorded = run_load(model, fitted, seconds, seed=1).recorded
    measured = run_load(model, checked, seconds, seed=2)
    history = simulate(measured.trace, recorded.limits, recorded.steps, recorded.control)
    firsts = [ttft_ns(request) or 0 for request in history.requests]
    gaps = [tpot_ns(request) or 0.0 for request in history.requests]
    client = list(zip(measured.trace, measured.outcomes, strict=True))
    return Comparison(
        measured={
            "TTFT": _percentiles_ms([1e9 * (outcome.first_s - outcome.late_s) for _, outcome in client]),
            "TPOT": _percentiles_ms(
                [
                    1e9 * (outcome.end_s - outcome.first_s) / (request.num_output_tokens - 1)
                    for request, outcome in client
                ]
            ),
        },
        simulated={"TTFT": _percentiles_ms(firsts), "TPOT": _percentiles_ms(gaps)},
        fit=recorded.steps.lines(),
    )


def _percentiles_ms(values_ns: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) / 1e6 for value in np.percentile(values_ns, PERCENTILES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--fit", nargs=3, type=float, default=[1.5, 96, 48], metavar=("RATE", "IN", "OUT"))
    parser.add_argument("--check", nargs=3, type=float, default=[0.8, 192, 96], metavar=("RATE", "IN", "OUT"))
    args = parser.parse_args()
    loads = [Load(rate, int(length), int(output)) for rate, length, output in (args.fit, args.check)]
    print(describe_machine())
    comparison = compare(args.model, loads[0], loads[1], args.seconds)
    print("\n".join(comparison.lines()))
    sys.exit(any(abs(comparison.error(name)) > MAX_ERROR for name in comparison.measured))


if __name__ == "__main__":
    main()
