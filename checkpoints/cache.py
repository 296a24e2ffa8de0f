"""The user's cache directory and the lock on one entry of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ConfigError
from .progress import Progress


def cache_directory(kind: str) -> Path:
    """`$XDG_CACHE_HOME/callboard/kind`, by default `~/.cache/callboard/kind`; made if need be. Raises ConfigError."""
    # The XDG specification: a relative path is invalid and must be ignored.
    stated = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(stated) if os.path.isabs(stated) else Path.home() / ".cache"
    directory = root / "callboard" / kind
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the cache directory {directory}: {error.strerror}", advice="set XDG_CACHE_HOME"
        ) from error
    return directory


@contextmanager
def exclusive(lock_file: Path, what: str, progress: Progress) -> Iterator[None]:
    """Holds the lock; the kernel gives it back if the process dies. A wait is shown as `waiting for ...`."""
    with open(lock_file, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.start(f"waiting for another process that fetches {what}", None)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            finally:
                progress.finish()
        yield
