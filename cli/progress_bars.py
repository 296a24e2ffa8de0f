"""Progress bars while fetching and loading, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn


class ProgressBars:
    """On standard error; implements `shown_progress.ShownProgress`."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._fetching: TaskID | None = None
        self._loading: TaskID | None = None

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, what: str, total_bytes: int | None) -> None:
        self._fetching = self._bars.add_task(what, total=total_bytes)

    def advance(self, num_bytes: int) -> None:
        if self._fetching is not None:
            self._bars.advance(self._fetching, num_bytes)

    def finish(self) -> None:
        if self._fetching is not None:
            self._bars.remove_task(self._fetching)
            self._fetching = None

    def loading(self, bytes_done: int, bytes_total: int) -> None:
        """Weights loaded, of how many bytes."""
        if self._loading is None:
            self._loading = self._bars.add_task("loading weights", total=bytes_total)
        self._bars.update(self._loading, completed=bytes_done, total=bytes_total)
