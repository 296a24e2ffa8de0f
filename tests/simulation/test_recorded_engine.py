"""`callboard simulate --fit`: an engine that wrote a journal, in place of a shape and a device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.cli.simulate_fit import read_recorded
from callboard.errors import ConfigError
from callboard.scheduling import SchedulerLimits
from callboard.simulation import FittedSteps

TRACE = Path(__file__).parent.parent / "data" / "traces" / "azure2023_conv_200.csv"
MakeJournal = Callable[..., Path]


def test_the_journal_of_an_engine_gives_its_times_and_limits(
    make_journal: MakeJournal,
    make_limits: Callable[..., SchedulerLimits],
    recorded_steps: FittedSteps,
    tmp_path: Path,
) -> None:
    recorded = read_recorded([make_journal(tmp_path)])
    assert recorded.limits == make_limits()
    assert recorded.steps.weights_ns[:5] == pytest.approx(recorded_steps.weights_ns[:5], rel=0.02)
    assert recorded.control.report_ns == 200_000


def test_the_command_simulates_a_recorded_engine(
    make_journal: MakeJournal, recorded_steps: FittedSteps, tmp_path: Path
) -> None:
    path = make_journal(tmp_path, 40, max_num_seqs=5)
    command = ["simulate", "--trace", str(TRACE), "--fit", str(path), "--limit", "30", "--set", "max_model_len=9000"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.output.startswith("step time fitted to ")
    as_json = CliRunner().invoke(app, [*command, "--json", "--num-blocks", "5000"], catch_exceptions=False)
    (run,) = json.loads(as_json.output)
    assert run["report"]["all"]["num_complete"] == 30
    assert run["report"]["all"]["itl_ms"]["p50"] > recorded_steps.weights_ns[0] / 1e6


def test_too_short_a_journal(make_journal: MakeJournal, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="measured steps are too few"):
        read_recorded([make_journal(tmp_path, 1)])


def test_nothing_says_how_long_a_step_takes() -> None:
    result = CliRunner().invoke(app, ["simulate", "--trace", str(TRACE)])
    assert isinstance(result.exception, ConfigError)
    assert "--fit" in str(result.exception.advice)
