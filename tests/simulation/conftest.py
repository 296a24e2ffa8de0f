"""Step times that are known beforehand, and limits with room for everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from callboard.journal.writer import JournalWriter
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.simulation import ControlTimes, FittedSteps, StepLoad, TraceRequest
from callboard.simulation.run import Simulation


class ConstantSteps:
    """Every step takes as long."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns

    def step_ns(self, load: StepLoad) -> int:
        return self._step_ns


class AffineSteps:
    """1 ms, and 10 us a token."""

    def step_ns(self, load: StepLoad) -> int:
        return 1_000_000 + 10_000 * load.num_tokens


class _TwiceAsSlowLater:
    """Step times that double at a time of their simulation; None: never."""

    def __init__(self, steps: FittedSteps, from_ns: int | None) -> None:
        self._steps, self._from_ns = steps, from_ns
        self.simulation: Simulation | None = None

    def step_ns(self, load: StepLoad) -> int:
        assert self.simulation is not None
        is_slow = self._from_ns is not None and self.simulation.scheduler.now_ns >= self._from_ns
        return self._steps.step_ns(load) * (2 if is_slow else 1)


class _Recorded:
    """A scheduler in front of a journal, as its actor has it."""

    def __init__(self, scheduler: Scheduler, writer: JournalWriter) -> None:
        self._scheduler, self._writer = scheduler, writer
        self._encoder = msgspec.msgpack.Encoder()

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        self._writer.take(now_ns, events)
        plan = self._scheduler.step(now_ns, events)
        if plan is not None:
            self._writer.planned(plan, self._encoder.encode(plan))
        return plan

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)


MakeLimits = Callable[..., SchedulerLimits]


@pytest.fixture
def make_limits() -> MakeLimits:
    def make(**changes: object) -> SchedulerLimits:
        fields: dict[str, object] = {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "long_prefill_token_threshold": 0,
            "pipeline_depth": 2,
            "watermark": 0.0,
            "max_queued_requests": 10_000,
            "max_queued_tokens": 10_000_000,
            "num_blocks": 4096,
            "block_size": 16,
            "prefix_caching": False,
            "max_model_len": 4096,
        }
        return SchedulerLimits(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def constant_steps() -> Callable[[int], ConstantSteps]:
    return ConstantSteps


@pytest.fixture
def affine_steps() -> AffineSteps:
    return AffineSteps()


@pytest.fixture(scope="session")
def recorded_steps() -> FittedSteps:
    """The step times of the engine that `make_journal` records."""
    return FittedSteps((3e6, 4e4, 9e4, 2.5e4, 40.0, 0.0, 0.0), 0, 0.0, 0.0)


@pytest.fixture
def make_journal(make_limits: MakeLimits, recorded_steps: FittedSteps) -> Callable[..., Path]:
    """The journal of a simulated engine, written into a folder; `changes` as in `make_limits`."""

    def make(folder: Path, num_requests: int = 80, slow_from_ns: int | None = None, **changes: object) -> Path:
        limits = make_limits(**changes)
        trace = [TraceRequest(i * 11_000_000, 10 + 13 * i % 200, 3 + i % 30) for i in range(num_requests)]
        steps = _TwiceAsSlowLater(recorded_steps, slow_from_ns)
        control = ControlTimes(200_000, 100_000, 200_000, 1_000_000)
        simulation = steps.simulation = Simulation(trace, limits, steps, control, is_stepwise=True)
        writer = JournalWriter(folder / "engine", 1 << 30, limits, 0)
        simulation.scheduler = _Recorded(Scheduler(limits), writer)  # type: ignore[assignment]
        simulation.scheduler.step(0, [WorkerAttached(1)])
        simulation.run()
        writer.close()
        assert writer.path is not None
        return writer.path

    return make
