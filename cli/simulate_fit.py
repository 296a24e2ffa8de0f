"""A device as a journal tells of it: step times, control times, and the limits of the scheduler that was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError
from ..journal.reader import JournalFile
from ..journal.replay import Observer, Replay, runs_of
from ..scheduling.limits import SchedulerLimits
from ..simulation import ControlTimes, FittedSteps, fit
from ..simulation.measured_steps import MeasuredSteps
from ..simulation.periods import Period, parse_period


class Recorded(NamedTuple):
    """Of one engine."""

    steps: FittedSteps
    control: ControlTimes
    limits: SchedulerLimits


def parse_periods(paths: Sequence[Path], texts: Sequence[str]) -> list[Period] | None:
    """Each `FROM:TO` in seconds since the first of the journal files began; None without any. Raises ConfigError."""
    return [parse_period(text, JournalFile(paths[0]).header.now_ns) for text in texts] or None


def read_recorded(
    paths: Sequence[Path], periods: Sequence[Period] | None = None, observers: Sequence[Observer] = ()
) -> Recorded:
    """Replay journal files, in their order, and fit the steps in the periods (None: all of them).

    `observers` are told of the whole replay. Raises ConfigError if too little was recorded, or a plan is not what it
    was.
    """
    runs = runs_of([JournalFile(path) for path in paths])
    measured = MeasuredSteps(periods)
    for files in runs:
        replay = Replay(observers=(measured, *observers))
        replay.run(files)
        if replay.difference is not None:
            raise ConfigError(
                f"{files[0].path}: the replay differs from the run: {replay.difference.reason}",
                advice="`callboard replay` shows where; a journal is fitted by the version that wrote it",
            )
        measured.forget()
    try:
        steps = fit(measured.samples())
    except ValueError as error:
        names = ", ".join(map(str, paths))
        raise ConfigError(f"{names}: {error}", advice="record a longer run") from error
    return Recorded(steps, measured.control_times(), runs[0][0].limits)
