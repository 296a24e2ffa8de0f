"""`callboard simulate`: the scheduler in virtual time, driven by a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..checkpoints import ModelShape, read_shape, resolve_checkpoint
from ..checkpoints.resolve import DUMMY
from ..errors import ConfigError
from ..scheduling.limits import SchedulerLimits
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
from ..simulation.settings import changed_limits, combinations_of, limits_of, parse_settings
from ..simulation.tables import aligned, comparison_rows, report_lines
from ..topology.schema import KVCacheSection
from .simulate_fit import parse_periods, read_recorded

DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float8": 1}


class SimulateOptions(msgspec.Struct, frozen=True):
    """The command's options, as they were given."""

    trace: Path
    model_shape: str | None = None
    device: str | None = None
    fit: tuple[Path, ...] = ()
    fit_times: tuple[str, ...] = ()
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
    trace = trace_of(options)
    engine = _recorded_engine(options) if options.fit else _roofline_engine(options)
    control = _changed_control(engine.control, options)
    runs: list[tuple[str, History]] = []
    for name, changes in combinations_of(options.compare):
        limits = engine.limits_of({**parse_settings(options.settings), **changes})
        runs.append((name, simulate(trace, limits, engine.step_times, control)))
    reports = [(name, report_of(history, options.objectives)) for name, history in runs]
    for path in options.plots:
        write_plots(path, runs)
    _print(options, engine.notes, reports)
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


class _Engine(NamedTuple):
    """What is simulated."""

    step_times: StepTimes
    control: ControlTimes
    limits_of: Callable[[Mapping[str, str]], SchedulerLimits]
    notes: list[str]
    """What a person should know of it."""


def _recorded_engine(options: SimulateOptions) -> _Engine:
    """The one that wrote a journal, with its limits."""
    steps, control, limits = read_recorded(options.fit, parse_periods(options.fit, options.fit_times))
    if options.num_blocks is not None:
        limits = msgspec.structs.replace(limits, num_blocks=options.num_blocks)
    return _Engine(steps, control, lambda settings: changed_limits(limits, settings), steps.lines())


def _roofline_engine(options: SimulateOptions) -> _Engine:
    """A model's shape on a device, with the topology's defaults."""
    if options.model_shape is None or options.device is None:
        raise ConfigError("nothing says how long a step takes", advice="give --model-shape and --device, or --fit")
    shape, device = shape_of(options.model_shape), find_device(options.device)
    dtype_bytes, kv_dtype_bytes = (_dtype_bytes(name) for name in (options.dtype, options.kv_dtype))

    def limits_with(settings: Mapping[str, str]) -> SchedulerLimits:
        max_model_len = _number(settings, "max_model_len", shape.max_position)
        num_blocks = options.num_blocks
        if num_blocks is None and "num_blocks" not in settings:
            num_blocks = kv_blocks(
                shape,
                device,
                max_model_len=max_model_len,
                block_size=_number(settings, "block_size", KVCacheSection().block_size),
                dtype_bytes=dtype_bytes,
                kv_dtype_bytes=kv_dtype_bytes,
                kv_share=options.kv_share,
            )
        return limits_of(settings, num_blocks=num_blocks or 1, max_model_len=max_model_len)

    notes = [f"step time by roofline: {device.name} ({device.source or 'no source given'})"]
    return _Engine(Roofline(shape, device, dtype_bytes, kv_dtype_bytes), ControlTimes(), limits_with, notes)


def _changed_control(control: ControlTimes, options: SimulateOptions) -> ControlTimes:
    if options.schedule_us is not None:
        control = msgspec.structs.replace(control, schedule_ns=round(options.schedule_us * 1e3))
    if options.prepare_us is not None:
        control = msgspec.structs.replace(control, prepare_ns=round(options.prepare_us * 1e3))
    return control


def _dtype_bytes(name: str) -> int:
    if name not in DTYPE_BYTES:
        raise ConfigError(f"{name!r} is no dtype of the simulator", advice=f"name one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name]


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
