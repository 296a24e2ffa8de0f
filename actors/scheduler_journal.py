"""The journal beside the scheduler actor: when it is written, and what happens when it cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..journal.writer import JournalWriter
from ..mailbox.messages.steps import StepPlan
from ..scheduling.events import Event
from .log import log_event

FLUSH_AFTER_S = 1.0
"""What was taken is in the file after so long: a death of the process costs at most this much of the journal."""


class SchedulerJournal:
    """Passes calls on to the writer. Once that fails it says so in one line and is silent from then on."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer: JournalWriter | None = writer
        self._timer: asyncio.TimerHandle | None = None

    def take(self, now_ns: int, events: Sequence[Event]) -> None:
        """As `JournalWriter.take`."""
        if self._writer is not None:
            self._writer.take(now_ns, events)

    def planned(self, plan: StepPlan, encoded: bytes) -> None:
        """As `JournalWriter.planned`."""
        if self._writer is not None:
            self._writer.planned(plan, encoded)

    def checked(self) -> None:
        """As `JournalWriter.checked`."""
        if self._writer is not None:
            self._writer.checked()

    def write_due(self) -> None:
        """Write if there is enough, or in a second. The scheduler is between two calls."""
        writer = self._writer
        if writer is None:
            return
        writer.write_due()
        if writer.failure is not None:
            self._give_up(writer)
        elif self._timer is None and writer.has_unwritten:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._writer is not None:
            self._writer.flush()
            if self._writer.failure is not None:
                self._give_up(self._writer)

    def _give_up(self, writer: JournalWriter) -> None:
        log_event("journal.stopped", file=writer.path, reason=writer.failure)
        self._writer = None

    def close(self) -> None:
        """Write all that was taken."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
