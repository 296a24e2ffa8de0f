"""Times of decode steps and of a prompt, in this process, beside what reading their bytes takes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from ..actors.launch import Launch
from ..execution.compiled_forward import CompiledForward
from ..kernels.cpu.step_arguments import PHASES
from ..mailbox.messages.sampling import SamplingParams
from ..models.compiled_decoder import CompiledDecoder
from .bandwidth import read_bandwidth
from .processor_clock import ProcessorClock
from .runner_here import RunnerHere, Tokens, launch_of
from .step_floor import ATTENTION, kv_bytes, matrix_bytes, plain_matrix_bytes

Float64s = npt.NDArray[np.float64]
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
MATRICES = "matrices"
"""All of them, where torch computes the model and there are no phases."""
_SAMPLING = SamplingParams(seed=0, temperature=0.0, ignore_eos=True)


class Options(msgspec.Struct, frozen=True):
    """Lengths in tokens."""

    num_rows: tuple[int, ...] = (1, 4, 16, 32)
    context: int = 128
    """Of each row at its first step; a step adds one."""
    num_steps: int = 127
    """Timed, after one that is not."""
    prompt_len: int = 2000
    num_prompts: int = 3
    """Timed, after one that is not."""
    num_threads: int | None = None
    """None: the cores."""

    @property
    def mean_context(self) -> float:
        """Tokens that a row looks back at in a timed step, itself included."""
        return self.context + 1 + (self.num_steps + 1) / 2


class Phase(msgspec.Struct, frozen=True):
    """Of all layers together."""

    name: str
    """`decoder_step.PHASES`"""
    median_ms: float
    """Waiting for the other threads included."""
    num_bytes: float
    """What it must read."""


class Step(msgspec.Struct, frozen=True):
    """Of `num_rows` rows."""

    num_rows: int
    median_ms: float
    """From a plan to its result."""
    outside_ms: float
    """Median of what the kernels have no part in: inputs, sampling, result. All of it, if there are no phases."""
    phases: tuple[Phase, ...]
    """None if torch computes the model."""
    num_bytes: float
    """What all must read."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_rows * 1e3 / self.median_ms


class Profile(msgspec.Struct, frozen=True):
    """One model in one dtype."""

    model: str
    dtype: str
    num_threads: int
    load_s: float
    bandwidth: float
    """Bytes/s, of as many threads."""
    matrix_bytes: int
    """That a step reads."""
    mean_context: float
    """Of all rows, over the steps."""
    prompt_len: int
    prompt_ms: float
    """One prompt in one step: the median."""
    steps: tuple[Step, ...]

    def floor_ms(self, num_bytes: float) -> float:
        return num_bytes / self.bandwidth * 1e3

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_len * 1e3 / self.prompt_ms


def measure(model: str, dtype: str, options: Options, name: str | None = None) -> Profile:
    """`dtype` as a topology has it; `name`: the model's in the report. Raises ConfigError."""
    num_threads = options.num_threads or len(os.sched_getaffinity(0))
    launch = _launch(model, dtype, options, num_threads)
    shape, held = launch.shape, launch.topology.model
    begun = time.perf_counter()
    runner = RunnerHere(launch)
    load_s = time.perf_counter() - begun
    decoder = runner.forward.model if isinstance(runner.forward, CompiledForward) else None
    if decoder is None:
        read_bytes = {MATRICES: plain_matrix_bytes(shape, ELEMENT_BYTES[held.dtype])}
    else:
        read_bytes = matrix_bytes(decoder.weights)
    bandwidth = read_bandwidth(num_threads)
    draw = np.random.default_rng(0)
    prompt_ms = _prompt_ms(runner, draw.integers(0, shape.vocab_size, options.prompt_len).tolist(), options.num_prompts)
    steps = []
    for num_rows in options.num_rows:
        prompts = draw.integers(0, shape.vocab_size, (num_rows, options.context)).tolist()
        kv = kv_bytes(shape, num_rows, options.mean_context, ELEMENT_BYTES[held.kv_dtype])
        steps.append(_measure_step(runner, decoder, prompts, options.num_steps, {**read_bytes, ATTENTION: kv}))
    if decoder is not None:
        decoder.close()
    return Profile(
        model=name or model,
        dtype=held.dtype,
        num_threads=num_threads,
        load_s=load_s,
        bandwidth=max(bandwidth, read_bandwidth(num_threads)),
        matrix_bytes=sum(read_bytes.values()),
        mean_context=options.mean_context,
        prompt_len=options.prompt_len,
        prompt_ms=prompt_ms,
        steps=tuple(steps),
    )


def summarize(num_rows: int, steps_ms: Float64s, phases_ms: Float64s, read_bytes: Mapping[str, float]) -> Step:
    """steps_ms: [num_steps]; phases_ms: [num_steps, len(PHASES), or 0]."""
    names = PHASES[: phases_ms.shape[1]]
    medians = np.median(phases_ms, axis=0).tolist() if names else []
    return Step(
        num_rows=num_rows,
        median_ms=float(np.median(steps_ms)),
        outside_ms=float(np.median(steps_ms - phases_ms.sum(axis=1))),
        phases=tuple(
            Phase(name, median, read_bytes.get(name, 0.0)) for name, median in zip(names, medians, strict=True)
        ),
        num_bytes=sum(read_bytes.values()),
    )


def _launch(model: str, dtype: str, options: Options, num_threads: int) -> Launch:
    context, most = options.context, max(options.num_rows)
    return launch_of(
        model,
        dtype=dtype,
        num_rows=most,
        max_len=max(context + options.num_steps + 2, options.prompt_len + 1),
        max_step_tokens=max(most * context, options.prompt_len),
        num_threads=num_threads,
    )


def _measure_step(
    runner: RunnerHere,
    decoder: CompiledDecoder | None,
    prompts: list[Tokens],
    num_steps: int,
    read_bytes: Mapping[str, float],
) -> Step:
    clock = ProcessorClock()
    laps = list(_laps(runner, decoder, prompts, num_steps))
    unit_ms = clock.seconds_per_unit() * 1e3
    steps_ms = np.array([step_ns for step_ns, _ in laps]) / 1e6
    phases_ms = np.array([units for _, units in laps]) * unit_ms
    return summarize(len(prompts), steps_ms, phases_ms, read_bytes)


def _laps(
    runner: RunnerHere, decoder: CompiledDecoder | None, prompts: list[Tokens], num_steps: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """(nanoseconds, units of the processor in each phase) of each step but the first."""
    for _ in runner.prompt_steps(prompts, _SAMPLING, len(prompts[0]), samples=True):
        pass
    starts = np.full(len(prompts), len(prompts[0]), np.int32)
    times = np.zeros(0, np.int64) if decoder is None else decoder.times[0]
    for index in range(num_steps + 1):
        before = times.copy()
        result = runner.decode_step(starts + np.int32(index))
        if index:
            yield result.end_ns - result.start_ns, times - before


def _prompt_ms(runner: RunnerHere, prompt: Tokens, num_prompts: int) -> float:
    times_ns = [
        result.end_ns - result.start_ns
        for _ in range(num_prompts + 1)
        for result in runner.prompt_steps([prompt], _SAMPLING, len(prompt), samples=True)
    ]
    return statistics.median(times_ns[1:]) / 1e6
