"""How fetching and loading are shown: bars on a terminal, else lines in the log, both on standard error."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ..checkpoints import Progress
from .progress_log import ProgressLog


class ShownProgress(Progress, Protocol):
    """Of a model's files, then of its weights."""

    def loading(self, bytes_done: int, bytes_total: int) -> None:
        """Weights loaded, of how many bytes."""
        ...


def shown_progress() -> AbstractContextManager[ShownProgress]:
    """To be shown within the block. What draws bars is imported only for them."""
    if not sys.stderr.isatty():
        return nullcontext(ProgressLog())
    from .progress_bars import ProgressBars

    return ProgressBars()
