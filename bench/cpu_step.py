"""Where the time of a decode step goes on the CPU, beside its floor; and how models of other shapes do.

    python -m callboard.bench.cpu_step [MODEL] [--rows 1,4,16,32] [--context N] [--prompt N] [--dtypes auto,...]
        [--steps N] [--threads N] [--json]
    python -m callboard.bench.cpu_step --sweep [--dtypes int4,bfloat16] [--shapes NAME,...] [--threads N] [--json]

The model is loaded as a worker loads it and computed by the worker's runner, in this process. Times are medians over
the steps of a batch that decodes, phase by phase of the compiled step, the wait at the end of a phase included; where
torch computes a model there are no phases. The floor is the bytes that a phase must read (matrices as they are packed,
keys and values of the context) over the bandwidth of memory, measured in the same run with as many threads. "outside"
is what is left of a step: inputs, sampling, result.

The sweep makes random weights to the config.json of published models of 0.5, 1.1 and 3 billion parameters. Its ceiling
is the bandwidth over the bytes of all matrices, which one row of any length cannot pass.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from ..simulation.tables import aligned, milliseconds
from .dummy_shapes import CONFIGS, write_config
from .machine import describe_machine
from .overlap import DEMO_MODEL
from .step_times import Options, Profile, Step, measure

SWEEP = Options(num_rows=(1, 16), context=32, num_steps=8, prompt_len=128, num_prompts=1)
"""Few of each: three billion parameters are slow."""


def profile_rows(profile: Profile) -> list[list[str]]:
    """A line for each phase, then outside, step, and tokens/s; of each number of rows milliseconds and their floor."""
    head = [f"{profile.dtype}, ms"]
    for step in profile.steps:
        head += [f"{step.num_rows} row{'s' * (step.num_rows > 1)}", "floor"]
    lines = [head]
    for index, phase in enumerate(profile.steps[0].phases):
        line = [phase.name]
        for step in profile.steps:
            same = step.phases[index]
            line += [f"{same.median_ms:.2f}", _floor(profile, same.num_bytes)]
        lines.append(line)
    if profile.steps[0].phases:
        lines.append(["outside", *_pairs(profile, lambda step: (f"{step.outside_ms:.2f}", ""))])
    lines.append(["step", *_pairs(profile, lambda step: (f"{step.median_ms:.2f}", _floor(profile, step.num_bytes)))])
    return [*lines, ["tokens/s", *_pairs(profile, lambda step: _tokens_per_s(profile, step))]]


def profile_lines(profile: Profile) -> list[str]:
    """For a person."""
    return [
        f"{profile.model}, {profile.dtype}, {profile.num_threads} threads, {profile.mean_context:.0f} tokens of"
        f" context; memory {profile.bandwidth / 1e9:.1f} GB/s, matrices {profile.matrix_bytes / 2**20:.0f} MiB",
        *aligned(profile_rows(profile)),
        f"one prompt of {profile.prompt_len:,} tokens: {milliseconds(profile.prompt_ms)} ms,"
        f" {profile.prompt_tokens_per_s:,.0f} tokens/s",
    ]


def sweep_rows(profiles: Sequence[Profile]) -> list[list[str]]:
    """A line for each model and dtype; the ceiling is that of one row."""
    rates = [f"tokens/s, {step.num_rows} row{'s' * (step.num_rows > 1)}" for step in profiles[0].steps]
    lines = [["model", "dtype", "matrices, MiB", *rates, "ceiling, 1 row", "prompt tokens/s", "load, s"]]
    for profile in profiles:
        lines.append(
            [
                profile.model,
                profile.dtype,
                f"{profile.matrix_bytes / 2**20:,.0f}",
                *(f"{step.tokens_per_s:,.1f}" for step in profile.steps),
                f"{1e3 / profile.floor_ms(profile.matrix_bytes):,.1f}",
                f"{profile.prompt_tokens_per_s:,.0f}",
                f"{profile.load_s:.1f}",
            ]
        )
    return lines


def sweep(shapes: Sequence[str], dtypes: Sequence[str], options: Options) -> Iterator[Profile]:
    """Each shape in each dtype."""
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            model = write_config(Path(folder) / shape, CONFIGS[shape])
            for dtype in dtypes:
                yield measure(model, dtype, options, shape)


def _pairs(profile: Profile, cells: Callable[[Step], tuple[str, str]]) -> Iterator[str]:
    for step in profile.steps:
        yield from cells(step)


def _floor(profile: Profile, num_bytes: float) -> str:
    return f"{profile.floor_ms(num_bytes):.2f}" if num_bytes else ""


def _tokens_per_s(profile: Profile, step: Step) -> tuple[str, str]:
    ceiling = step.num_rows * 1e3 / profile.floor_ms(step.num_bytes)
    return f"{step.tokens_per_s:,.0f}", f"{ceiling:,.0f}"


def _print_sweep(shapes: Sequence[str], dtypes: Sequence[str], options: Options, *, as_json: bool) -> None:
    profiles = list(sweep(shapes, dtypes, options))
    if as_json:
        print(msgspec.json.encode(profiles).decode())
        return
    print(describe_machine())
    bandwidths = sorted(profile.bandwidth / 1e9 for profile in profiles)
    print(
        f"{profiles[0].num_threads} threads, {profiles[0].mean_context:.0f} tokens of context, one prompt of"
        f" {options.prompt_len}; memory {bandwidths[0]:.1f} to {bandwidths[-1]:.1f} GB/s"
    )
    print("\n".join(aligned(sweep_rows(profiles))))


def _print_profiles(model: str, dtypes: Sequence[str], options: Options, *, as_json: bool) -> None:
    profiles = [measure(model, dtype, options) for dtype in dtypes]
    if as_json:
        print(msgspec.json.encode(profiles).decode())
        return
    print(describe_machine())
    for profile in profiles:
        print("\n".join(["", *profile_lines(profile)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--sweep", action="store_true", help="models of three sizes with random weights")
    parser.add_argument("--shapes", default=",".join(CONFIGS), help="of the sweep")
    parser.add_argument("--dtypes", help="default: auto; of the sweep int4,bfloat16")
    parser.add_argument("--rows", help="numbers of rows")
    parser.add_argument("--context", type=int, help="tokens of each row at its first step")
    parser.add_argument("--steps", type=int, help="timed of each number of rows")
    parser.add_argument("--prompt", type=int, help="tokens")
    parser.add_argument("--threads", type=int, help="compute threads; default: the cores")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    default = SWEEP if args.sweep else Options()
    rows = default.num_rows if args.rows is None else tuple(map(int, args.rows.split(",")))
    options = msgspec.structs.replace(
        default,
        num_rows=rows,
        context=args.context or default.context,
        num_steps=args.steps or default.num_steps,
        prompt_len=args.prompt or default.prompt_len,
        num_threads=args.threads,
    )
    dtypes = (args.dtypes or ("int4,bfloat16" if args.sweep else "auto")).split(",")
    if args.sweep:
        _print_sweep(args.shapes.split(","), dtypes, options, as_json=args.json)
    else:
        _print_profiles(args.model, dtypes, options, as_json=args.json)


if __name__ == "__main__":
    main()
