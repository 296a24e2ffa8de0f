"""`callboard simulate`: the scheduler in virtual time, driven by a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..checkpoints import ModelShape, read_shape, resolve_checkpoint
from ..checkpoints.resolve import DUMMY
from ..errors import ConfigError
from ..scheduling import SchedulerLimits
from ..simulation import (
    ControlTimes,
    History,
    Objectives,
    Report,
    Roofline,
    StepTimes,
    Trace,
    clamped,
    find_device,
    kv_blocks,
    read_trace,
    report_of,
    scaled,
    simulate,
)
from ..simulation.capacity import DEFAULT_KV_SHARE
from ..simulation.plots import check_plot, write_plots
from ..simulation.settings import combinations_of, limits_of, parse_settings
from ..simulation.tables import aligned, comparison_rows, report_lines
from ..topology.schema import KVCacheSection

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float8": 1}


class SimulateOptions(msgspec.Struct, frozen=True):
    """The command's options, as they were given."""

    trace: Path
    model_shape: str
    device: str
    settings: tuple[str, ...] = ()
    compare: tuple[str, ...] = ()
    num_blocks: int | None = None
    kv_share: float = DEFAULT_KV_SHARE
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    speedup: float = 1.0
    length_divisor: int = 1
    max_prompt: int | None = None
    max_output: int | None = None
    limit: int | None = None
    objectives: Objectives = Objectives()
    schedule_us: float | None = None
    prepare_us: float | None = None
    is_json: bool = False
    plots: tuple[Path, ...] = ()


def run_simulations(options: SimulateOptions) -> int:
    """Simulate, print, draw; the exit status. Raises ConfigError."""
    for path in options.plots:
        check_plot(path)
    shape = shape_of(options.model_shape)
    trace = trace_of(options)
    step_times, control, notes = times_of(options, shape)
    runs: list[tuple[str, History]] = []
    for name, changes in combinations_of(options.compare):
        limits = _limits_of(options, shape, changes)
        runs.append((name, simulate(trace, limits, step_times, control)))
    reports = [(name, report_of(history, options.objectives)) for name, history in runs]
    for path in options.plots:
        write_plots(path, runs)
    _print(options, notes, reports)
    return 0


def shape_of(source: str) -> ModelShape:
    """Of a folder with a model's config.json, with or without weights, or of any MODEL. Raises ConfigError."""
    path = Path(source).expanduser()
    has_no_weights = path.is_dir() and not any(path.glob("*.safetensors")) and not any(path.glob("*.gguf"))
    return read_shape(resolve_checkpoint(f"{DUMMY}{source}" if has_no_weights else source))


def trace_of(options: SimulateOptions) -> Trace:
    """Read, scaled, cut. Raises ConfigError."""
    try:
        trace = scaled(
            read_trace(options.trace, options.limit), speedup=options.speedup, length_divisor=options.length_divisor
        )
    except ValueError as error:
        raise ConfigError(str(error), advice="give --speedup and --length-divisor above 0") from error
    return clamped(trace, max_prompt=options.max_prompt, max_output=options.max_output)


def times_of(options: SimulateOptions, shape: ModelShape) -> tuple[StepTimes, ControlTimes, list[str]]:
    """How long a step takes, what it costs beside the device, and what a person should know of both."""
    control = ControlTimes()
    device = find_device(options.device)
    step_times = Roofline(shape, device, DTYPE_BYTES[options.dtype], DTYPE_BYTES[options.kv_dtype])
    notes = [f"step time by roofline: {device.name} ({device.source or 'no source given'})"]
    if options.schedule_us is not None:
        control = msgspec.structs.replace(control, schedule_ns=round(options.schedule_us * 1e3))
    if options.prepare_us is not None:
        control = msgspec.structs.replace(control, prepare_ns=round(options.prepare_us * 1e3))
    return step_times, control, notes


def _limits_of(options: SimulateOptions, shape: ModelShape, changes: dict[str, str]) -> SchedulerLimits:
    settings = {**parse_settings(options.settings), **changes}
    max_model_len = _number(settings, "max_model_len", shape.max_position)
    num_blocks = options.num_blocks
    if num_blocks is None and "num_blocks" not in settings:
        num_blocks = kv_blocks(
            shape,
            find_device(options.device),
            max_model_len=max_model_len,
            block_size=_number(settings, "block_size", KVCacheSection().block_size),
            dtype_bytes=DTYPE_BYTES[options.dtype],
            kv_dtype_bytes=DTYPE_BYTES[options.kv_dtype],
            kv_share=options.kv_share,
        )
    return limits_of(settings, num_blocks=num_blocks or 1, max_model_len=max_model_len)


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    value = settings.get(name, str(default))
    if not value.isdecimal() or not int(value):
        raise ConfigError(f"{name} is {value!r}", advice="give a number above 0")
    return int(value)


def _print(options: SimulateOptions, notes: Sequence[str], reports: Sequence[tuple[str, Report]]) -> None:
    if options.is_json:
        print(msgspec.json.format(msgspec.json.encode([{"settings": n, "report": r} for n, r in reports])).decode())
        return
    lines = [*notes]
    if len(reports) == 1:
        lines += report_lines(reports[0][1])
    else:
        lines += ["times in ms", *aligned(comparison_rows(reports))]
    print("\n".join(lines))
