"""A device as a journal tells of it: step times, control times, and the limits of the scheduler that was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError
from ..journal import JournalFile, Replay, runs_of
from ..scheduling import SchedulerLimits
from ..simulation import ControlTimes, FittedSteps, fit
from ..simulation.measured_steps import MeasuredSteps


class Recorded(NamedTuple):
    """Of one engine."""

    steps: FittedSteps
    control: ControlTimes
    limits: SchedulerLimits


def read_recorded(paths: Sequence[Path]) -> Recorded:
    """Replay journal files, in their order, and fit. Raises ConfigError if too little was recorded, or a plan is not
    what it was."""
    runs = runs_of([JournalFile(path) for path in paths])
    measured = MeasuredSteps()
    for files in runs:
        replay = Replay(observers=(measured,))
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
