"""The files of one journal, PATH.000001 on: one is written, the oldest go so that all together stay within a bound."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .frames import PREFIX

FILES = 8
"""A file is closed when it has an eighth of the bound, but for what it begins with, and is at least half of that other
things: so much is lost with the oldest one."""


class JournalFull(OSError):
    """What is to be written is larger than all files together may be."""


class RotatingFiles:
    """Appends to the newest file. Raises OSError from every method if the file system does not want."""

    def __init__(self, stem: Path, max_bytes: int) -> None:
        self._stem, self._max_bytes = stem, max_bytes
        self._fd = -1
        self._num_bytes = self._num_begin = 0
        self._next_number = 0
        self._sizes: dict[Path, int] = {}
        """Of the older files, oldest first."""
        self.path: Path | None = None
        """The file that is written."""

    @property
    def is_due(self) -> bool:
        """The file is so large that the next write should go to a new one."""
        return self._num_bytes - self._num_begin >= max(self._max_bytes // FILES, self._num_begin)

    def begin(self, beginning: bytes) -> None:
        """Go on in a new file, which begins so (behind the prefix)."""
        self.close()
        if not self._next_number:
            self._find_older()
        path = Path(f"{self._stem}.{self._next_number:06d}")
        self._next_number += 1
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.path = path
        self.write(PREFIX + beginning)
        self._num_begin = self._num_bytes

    def _find_older(self) -> None:
        numbered = files_of(self._stem)
        self._next_number = max(numbered, default=0) + 1
        self._sizes = {path: path.stat().st_size for _, path in sorted(numbered.items())}

    def write(self, data: bytes) -> None:
        """Append, in one call of the system; older files go first if it would be too much with them."""
        while self._sizes and self._num_bytes + len(data) + sum(self._sizes.values()) > self._max_bytes:
            oldest = next(iter(self._sizes))
            oldest.unlink(missing_ok=True)
            del self._sizes[oldest]
        if self._num_bytes + len(data) > self._max_bytes:
            raise JournalFull(f"{self._num_bytes + len(data):,} bytes are more than max_bytes, {self._max_bytes:,}")
        num_written = os.write(self._fd, data)
        self._num_bytes += num_written
        if num_written != len(data):
            raise JournalFull(f"{num_written:,} of {len(data):,} bytes were written: the disk is full")

    def close(self) -> None:
        if self._fd < 0:
            return
        os.close(self._fd)
        assert self.path is not None
        self._sizes[self.path] = self._num_bytes
        self._fd, self._num_bytes = -1, 0


def files_of(stem: Path) -> dict[int, Path]:
    """The files of a journal by number; none if its folder is not there."""
    name = re.compile(re.escape(stem.name) + r"\.(\d{6,})")
    try:
        entries = list(stem.parent.iterdir())
    except FileNotFoundError:
        return {}
    return {int(found[1]): path for path in entries if (found := name.fullmatch(path.name))}
