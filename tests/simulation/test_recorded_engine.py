"""`callboard simulate --fit`: an engine that wrote a journal, in place of a shape and a device."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.cli.simulate_fit import parse_periods, read_recorded
from callboard.errors import ConfigError
from callboard.scheduling.limits import SchedulerLimits
from callboard.simulation import FittedSteps
from callboard.simulation.periods import Period, is_within, parse_period

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


def test_steps_are_chosen_by_time(make_journal: MakeJournal, recorded_steps: FittedSteps, tmp_path: Path) -> None:
    """The engine takes twice as long for a step from the journal's first half second on. 80 requests come in 0.9 s."""
    path = make_journal(tmp_path, slow_from_ns=500_000_000)
    fast, slow, every = (
        read_recorded([path], parse_periods([path], texts)).steps.weights_ns
        for texts in (["0.05:0.2", "0.2:0.45"], ["0.55:"], [])
    )
    expected = recorded_steps.weights_ns
    assert fast[:5] == pytest.approx(expected[:5], rel=0.03)
    assert slow[:5] == pytest.approx([2 * weight for weight in expected[:5]], rel=0.03)
    assert fast[0] < every[0] < slow[0]


def test_the_command_takes_times(make_journal: MakeJournal, tmp_path: Path) -> None:
    path = make_journal(tmp_path)
    command = ["simulate", "--trace", str(TRACE), "--fit", str(path), "--limit", "3", "--set", "max_model_len=9000"]
    counts = []
    for times in ([], ["--fit-time", ":0.5"], ["--fit-time", "0.5:"], ["--fit-time", ":0.5", "--fit-time", "0.5:"]):
        shown = CliRunner().invoke(app, [*command, *times], catch_exceptions=False)
        counts.append(int(re.search(r"fitted to ([\d,]+) steps", shown.output)[1].replace(",", "")))  # type: ignore[index]
    assert counts[0] == counts[1] + counts[2] == counts[3]
    assert min(counts[1:3]) > 0


@pytest.mark.parametrize("text", ["5", "5:4", "a:b", "-1:4", "3:3", "nan:4"])
def test_what_is_no_period(text: str) -> None:
    with pytest.raises(ConfigError, match="is no period"):
        parse_period(text, 0)


def test_periods() -> None:
    periods = [parse_period("1:2.5", 10), parse_period("4:", 10)]
    assert periods[0] == Period(1_000_000_010, 2_500_000_010)
    within = [is_within(periods, round(s * 1e9) + 10) for s in (0.9, 1.0, 2.4, 2.5, 3.9, 4.0, 1e6)]
    assert within == [False, True, True, False, False, True, True]


def test_too_short_a_journal(make_journal: MakeJournal, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="measured steps are too few"):
        read_recorded([make_journal(tmp_path, 1)])


def test_nothing_says_how_long_a_step_takes() -> None:
    result = CliRunner().invoke(app, ["simulate", "--trace", str(TRACE)])
    assert isinstance(result.exception, ConfigError)
    assert "--fit" in str(result.exception.advice)
