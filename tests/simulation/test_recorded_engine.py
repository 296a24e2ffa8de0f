"""`callboard simulate --fit`: an engine that wrote a journal, in place of a shape and a device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.cli.simulate_fit import read_recorded
from callboard.errors import ConfigError
from callboard.journal import JournalWriter
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling import Event, Scheduler, SchedulerLimits
from callboard.simulation import ControlTimes, FittedSteps, TraceRequest
from callboard.simulation.run import Simulation

TRACE = Path(__file__).parent.parent / "data" / "traces" / "azure2023_conv_200.csv"
TRUTH = FittedSteps((3e6, 4e4, 9e4, 2.5e4, 40.0, 0.0, 0.0), 0, 0.0, 0.0)
MakeLimits = Callable[..., SchedulerLimits]


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


def record(folder: Path, limits: SchedulerLimits, num_requests: int) -> Path:
    """The journal of a simulated engine whose step times are known."""
    from callboard.scheduling import WorkerAttached

    trace = [TraceRequest(i * 11_000_000, 10 + 13 * i % 200, 3 + i % 30) for i in range(num_requests)]
    simulation = Simulation(trace, limits, TRUTH, ControlTimes(200_000, 100_000, 200_000, 1_000_000))
    writer = JournalWriter(folder / "engine", 1 << 30, limits, 0)
    simulation.scheduler = _Recorded(Scheduler(limits), writer)  # type: ignore[assignment]
    simulation.scheduler.step(0, [WorkerAttached(1)])
    simulation.run()
    writer.close()
    assert writer.path is not None
    return writer.path


def test_the_journal_of_an_engine_gives_its_times_and_limits(make_limits: MakeLimits, tmp_path: Path) -> None:
    limits = make_limits()
    recorded = read_recorded([record(tmp_path, limits, 80)])
    assert recorded.limits == limits
    assert recorded.steps.weights_ns[:5] == pytest.approx(TRUTH.weights_ns[:5], rel=0.02)
    assert recorded.control.report_ns == 200_000


def test_the_command_simulates_a_recorded_engine(make_limits: MakeLimits, tmp_path: Path) -> None:
    path = record(tmp_path, make_limits(max_num_seqs=5), 40)
    command = ["simulate", "--trace", str(TRACE), "--fit", str(path), "--limit", "30", "--set", "max_model_len=9000"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.output.startswith("step time fitted to ")
    as_json = CliRunner().invoke(app, [*command, "--json", "--num-blocks", "5000"], catch_exceptions=False)
    (run,) = json.loads(as_json.output)
    assert run["report"]["all"]["num_complete"] == 30
    assert run["report"]["all"]["itl_ms"]["p50"] > TRUTH.weights_ns[0] / 1e6


def test_too_short_a_journal(make_limits: MakeLimits, tmp_path: Path) -> None:
    path = record(tmp_path, make_limits(), 1)
    with pytest.raises(ConfigError, match="measured steps are too few"):
        read_recorded([path])


def test_nothing_says_how_long_a_step_takes() -> None:
    result = CliRunner().invoke(app, ["simulate", "--trace", str(TRACE)])
    assert isinstance(result.exception, ConfigError)
    assert "--fit" in str(result.exception.advice)
