"""A real engine against its simulation: step times fitted from the journal of one load, checked on another.

    python -m callboard.bench.simulated_against_measured [MODEL] [--pairs N] [--seconds S]
        [--fit RATE IN OUT] [--check RATE IN OUT] [--pin {auto,no}] [--threads N]

Both loads are Poisson arrivals of greedy streams; prompts are random ids, so nothing is a prefix hit; lengths lie
evenly between half and one and a half of those named. One engine with one journal gets them in turns, N times for S
seconds each, and is idle in between. The steps of the first load are fitted. The second is measured by the client, and
each of its segments is simulated from the times at which its requests were sent; percentiles are over all of them. What
a client's TTFT has beside the engine's (HTTP, text) is no step: its median is taken from the first load, and added.
Prints both and the difference, for each pair too; exit code 1 if the median of TTFT or TPOT is off by more than 10 %.

Where there are more than two cores the worker has its own (`--pin no`: all share all).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
import numpy as np

from ..simulation import simulate
from ..simulation.report import tpot_ns, ttft_ns
from ..simulation.tables import aligned, milliseconds
from .alternating_loads import Alternation, Load, Segment, alternate
from .cores import cores_here
from .machine import describe_machine
from .overlap import DEMO_MODEL

MAX_ERROR = 0.1
PERCENTILES = (50, 90, 99)
FITTED, CHECKED = Load(1.2, 128, 64), Load(0.8, 96, 80)
NUM_PAIRS, SECONDS = 6, 15.0
MAX_THREADS = 4
"""Of the worker by default: a small model has no use for more, and each one more can be late."""


class Latencies(msgspec.Struct, frozen=True):
    """Nanoseconds, one of each request."""

    ttft_ns: list[float]
    tpot_ns: list[float]

    def median_ms(self) -> dict[str, float]:
        """By name."""
        return {name: values[0] for name, values in self.percentiles_ms().items()}

    def percentiles_ms(self) -> dict[str, list[float]]:
        """By name: at PERCENTILES."""
        named = {"TTFT": self.ttft_ns, "TPOT": self.tpot_ns}
        return {name: (np.percentile(values, PERCENTILES) / 1e6).tolist() for name, values in named.items()}


class Pair(msgspec.Struct, frozen=True):
    """One segment of the load that is checked, as it was and as it is simulated."""

    measured: Latencies
    simulated: Latencies


class Comparison(msgspec.Struct, frozen=True):
    """Of the second load."""

    pairs: list[Pair]
    notes: list[str]
    """The fit, and what lies outside of the engine."""

    def errors(self) -> dict[str, float]:
        """Of the medians over all segments, relative, by name."""
        return _errors(self._pooled())

    def lines(self) -> list[str]:
        """For a person."""
        rows = [["", "requests", "TTFT measured", "simulated", "error", "TPOT measured", "simulated", "error"]]
        rows += [_row(f"pair {number}", pair) for number, pair in enumerate(self.pairs, start=1)]
        pooled = self._pooled()
        rows.append(_row("all", pooled))
        wide = [["", *(f"{name} p{q}" for name in ("TTFT", "TPOT") for q in PERCENTILES)]]
        for label, found in (("measured", pooled.measured), ("simulated", pooled.simulated)):
            wide.append([label, *(milliseconds(value) for value in chain(*found.percentiles_ms().values()))])
        errors = ", ".join(f"{name} {error:+.1%}" for name, error in self.errors().items())
        return [
            *self.notes,
            "medians, ms:",
            *aligned(rows),
            "over all segments, ms:",
            *aligned(wide),
            f"error of the median: {errors}",
        ]

    def _pooled(self) -> Pair:
        return Pair(_pool(pair.measured for pair in self.pairs), _pool(pair.simulated for pair in self.pairs))


def compare(
    model: str,
    loads: tuple[Load, Load] = (FITTED, CHECKED),
    *,
    num_pairs: int = NUM_PAIRS,
    seconds: float = SECONDS,
    is_pinned: bool = True,
    num_threads: int | None = None,
) -> Comparison:
    """Fit on one load, check on the other."""
    cores = cores_here() if is_pinned else None
    num_own = len(os.sched_getaffinity(0)) if cores is None else len(cores.worker)
    num_threads = num_threads or min(MAX_THREADS, num_own)
    where = "anywhere" if cores is None else f"on cores {_ranges(cores.worker)}, all else on {_ranges(cores.rest)}"
    print(f"worker: {num_threads} threads, {where}", flush=True)
    return comparison_of(
        alternate(model, loads, num_pairs=num_pairs, seconds=seconds, cores=cores, num_threads=num_threads)
    )


def comparison_of(found: Alternation) -> Comparison:
    """Simulate the segments that are checked."""
    recorded = found.recorded
    control = recorded.control
    times = ", ".join(
        f"{name} {value / 1e3:.0f} us"
        for name, value in (
            ("request to scheduler", control.ingress_ns),
            ("plan to start", control.schedule_ns),
            ("end to scheduler", control.report_ns),
            ("outside of the engine", found.outside_ns),
        )
    )
    pairs = [
        Pair(Latencies(segment.ttft_ns(), segment.tpot_ns()), _simulated(segment, found)) for segment in found.checked
    ]
    return Comparison(pairs, [*recorded.steps.lines(), times])


def _simulated(segment: Segment, found: Alternation) -> Latencies:
    recorded = found.recorded
    history = simulate(segment.trace, recorded.limits, recorded.steps, recorded.control)
    return Latencies(
        [(ttft_ns(request) or 0) + found.outside_ns for request in history.requests],
        [tpot_ns(request) or 0.0 for request in history.requests],
    )


def _pool(parts: Iterable[Latencies]) -> Latencies:
    every = list(parts)
    return Latencies(
        [value for part in every for value in part.ttft_ns], [value for part in every for value in part.tpot_ns]
    )


def _errors(pair: Pair) -> dict[str, float]:
    measured, simulated = pair.measured.median_ms(), pair.simulated.median_ms()
    return {name: simulated[name] / measured[name] - 1 for name in measured}


def _row(label: str, pair: Pair) -> list[str]:
    measured, simulated, errors = pair.measured.median_ms(), pair.simulated.median_ms(), _errors(pair)
    row = [label, str(len(pair.measured.ttft_ns))]
    for name, error in errors.items():
        row += [milliseconds(measured[name]), milliseconds(simulated[name]), f"{error:+.1%}"]
    return row


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,8`, of ascending ones."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _load(values: Sequence[float]) -> Load:
    return Load(values[0], int(values[1]), int(values[2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each segment")
    for name, load in (("--fit", FITTED), ("--check", CHECKED)):
        default = [load.rate_per_s, load.input_len, load.output_len]
        parser.add_argument(name, nargs=3, type=float, default=default, metavar=("RATE", "IN", "OUT"))
    parser.add_argument("--pin", choices=["auto", "no"], default="auto", help="cores of its own for the worker")
    parser.add_argument("--threads", type=int, help=f"of the worker; default: its cores, {MAX_THREADS} at most")
    args = parser.parse_args()
    print(describe_machine())
    comparison = compare(
        args.model,
        (_load(args.fit), _load(args.check)),
        num_pairs=args.pairs,
        seconds=args.seconds,
        is_pinned=args.pin == "auto",
        num_threads=args.threads,
    )
    print("\n".join(comparison.lines()))
    sys.exit(any(abs(error) > MAX_ERROR for error in comparison.errors().values()))


if __name__ == "__main__":
    main()
