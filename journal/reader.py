"""A file of a journal, opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import ConfigError
from ..scheduling.limits import SchedulerLimits
from .frames import Frames
from .records import Calls, Checked, Header, Snapshot


class JournalFile:
    """Header and snapshot of a file; iterating gives the rest, up to the last whole record.

    Raises ConfigError for a file that is no journal, is of another version, or has not even a whole header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._frames = Frames(path)
        self._records = iter(self._frames)
        header = next(self._records, None)
        if not isinstance(header, Header):
            reason = self.ending or "its first record is no header"
            raise ConfigError(f"{path} has no whole header: {reason}", advice="name another file of the journal")
        self.header = header
        self.limits = msgspec.msgpack.decode(header.limits, type=SchedulerLimits)
        self.snapshot: Snapshot | None = None
        self._first: Calls | Checked | None = None
        record = next(self._records, None)
        if isinstance(record, Snapshot):
            self.snapshot = record
        elif isinstance(record, Calls | Checked):
            self._first = record

    @property
    def ending(self) -> str:
        """Why reading stopped before the file's end; empty if it did not."""
        return self._frames.ending

    def follows(self, before: JournalFile) -> bool:
        """It goes on where `before` ended."""
        mine, theirs = self.header, before.header
        return mine.run == theirs.run and mine.number == theirs.number + 1

    def __iter__(self) -> Iterator[Calls | Checked]:
        if self._first is not None:
            yield self._first
        for record in self._records:
            if isinstance(record, Calls | Checked):
                yield record
