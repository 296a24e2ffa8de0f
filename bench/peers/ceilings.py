"""What a decode step's matrices alone allow on this machine: the ceiling beside each closed loop.

Rows that decode, over the time that Callboard's own kernels take for the matrices of one step of so many rows, measured
before the peers start. Attention, norms, sampling, prompts and whatever stands around a step would have to be free.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from ..step_floor import ATTENTION
from ..step_times import Profile, Step
from .points import Point


def measure_ceilings(model: str, dtype: str, num_threads: int, points: Sequence[Point]) -> dict[str, float]:
    """Point -> output tokens/s, of points whose prompts are as short as their outputs; none where torch computes.

    In a process of its own, which is gone when the first peer starts. Raises CalledProcessError.
    """
    decoding = [point for point in points if point.input_len <= point.output_len]
    if not decoding:
        return {}
    rows = ",".join(str(point.concurrency) for point in decoding)
    command = [sys.executable, "-P", "-m", "callboard.bench.cpu_step", model, "--rows", rows, "--dtypes", dtype]
    more = ["--steps", "40", "--prompt", "128", "--threads", str(num_threads), "--json"]
    output = subprocess.run([*command, *more], stdout=subprocess.PIPE, check=True).stdout
    (profile,) = msgspec.json.decode(output.splitlines()[-1], type=list[Profile])
    return ceilings_of(profile, decoding)


def ceilings_of(profile: Profile, points: Sequence[Point]) -> dict[str, float]:
    """As `measure_ceilings`."""
    of_rows: Mapping[int, Step] = {step.num_rows: step for step in profile.steps if step.phases}
    return {
        point.name: point.concurrency * 1e3 / _matrices_ms(of_rows[point.concurrency])
        for point in points
        if point.concurrency in of_rows
    }


def _matrices_ms(step: Step) -> float:
    return sum(phase.median_ms for phase in step.phases if phase.num_bytes and phase.name != ATTENTION)
