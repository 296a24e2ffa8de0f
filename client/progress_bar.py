"""The progress bar of a batch, on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .batch_progress import BatchProgress


class ProgressBar:
    """A context manager that gives what is to be called with each `BatchProgress`."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._line = self._bar.add_task("prompts", total=None, speed="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: BatchProgress) -> None:
        speed = f"{progress.tokens_per_s:,.0f} tokens/s"
        if progress.num_failed:
            speed += f", {progress.num_failed:,} failed"
        self._bar.update(self._line, completed=progress.num_done, total=progress.num_prompts, speed=speed)
