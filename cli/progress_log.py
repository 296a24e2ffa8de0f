"""Progress of fetching and loading for a log: a line when work begins to take long, then one now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..actors.log import log_event

INTERVAL_S = 10.0
"""Between two lines of one piece of work, and before its first."""


class ProgressLog:
    """Implements `checkpoints.Progress`; `loading` is told of weights. `now_s`: a monotonic clock."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, write: Callable[..., None] = log_event) -> None:
        self._now_s, self._write = now_s, write
        self._what = ""
        self._bytes_done, self._bytes_total = 0, 0
        self._told_s = now_s()

    def start(self, what: str, total_bytes: int | None) -> None:
        self._what, self._bytes_done, self._bytes_total = what, 0, total_bytes or 0
        self._told_s = self._now_s()

    def advance(self, num_bytes: int) -> None:
        self._bytes_done += num_bytes
        self._tell()

    def finish(self) -> None:
        self._what = ""

    def loading(self, bytes_done: int, bytes_total: int) -> None:
        """Weights loaded, of how many bytes."""
        if not self._what:
            self.start("loading weights", bytes_total)
        self._bytes_done, self._bytes_total = bytes_done, bytes_total
        self._tell()

    def _tell(self) -> None:
        now_s = self._now_s()
        if now_s - self._told_s < INTERVAL_S:
            return
        self._told_s = now_s
        share = f"{self._bytes_done / self._bytes_total:.0%}" if self._bytes_total else "unknown"
        self._write(
            "start.progress",
            what=self._what,
            mb=self._bytes_done // 1_000_000,
            of_mb=self._bytes_total // 1_000_000 or "unknown",
            share=share,
        )
