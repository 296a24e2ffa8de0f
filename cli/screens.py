"""What a person sees: progress bars while fetching and loading, and one clear screen when a start fails."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from ..errors import StartFailed
from .progress_log import ProgressLog


class ProgressBars:
    """Bars on a terminal, else lines in the log, both on standard error; implements `checkpoints.Progress`."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._log = None if console.is_terminal else ProgressLog()
        self._fetching: TaskID | None = None
        self._loading: TaskID | None = None

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, what: str, total_bytes: int | None) -> None:
        if self._log is not None:
            self._log.start(what, total_bytes)
        self._fetching = self._bars.add_task(what, total=total_bytes)

    def advance(self, num_bytes: int) -> None:
        if self._log is not None:
            self._log.advance(num_bytes)
        if self._fetching is not None:
            self._bars.advance(self._fetching, num_bytes)

    def finish(self) -> None:
        if self._log is not None:
            self._log.finish()
        if self._fetching is not None:
            self._bars.remove_task(self._fetching)
            self._fetching = None

    def loading(self, bytes_done: int, bytes_total: int) -> None:
        """Weights loaded, of how many bytes."""
        if self._log is not None:
            self._log.loading(bytes_done, bytes_total)
        if self._loading is None:
            self._loading = self._bars.add_task("loading weights", total=bytes_total)
        self._bars.update(self._loading, completed=bytes_done, total=bytes_total)


MAX_CAUSE_LINES = 7
MAX_LINE_CHARACTERS = 600


def start_failure_screen(error: StartFailed) -> str:
    """Phase, cause and advice of a start that failed, on one screen.

    Causes quote files and other programs: control characters are escaped, long lines and long lists cut.
    """
    causes = [plain(line) for line in error.cause.splitlines()] or [""]
    if len(causes) > MAX_CAUSE_LINES:
        causes[MAX_CAUSE_LINES - 1 :] = [f"  ... and {len(causes) - MAX_CAUSE_LINES + 1:,} more"]
    lines = [f"callboard could not start (phase: {error.phase})", f"  cause:  {causes[0]}"]
    lines += [f"        {line}" for line in causes[1:]]
    if error.advice:
        lines.append(f"  advice: {plain(' '.join(error.advice.splitlines()))}")
    return "\n".join(lines)


def print_start_failure(error: StartFailed) -> None:
    """The screen, on standard error."""
    print(start_failure_screen(error), file=sys.stderr, flush=True)


def plain(line: str) -> str:
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= MAX_LINE_CHARACTERS else shown[: MAX_LINE_CHARACTERS - 1] + "…"
