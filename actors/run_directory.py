"""The directory of a running engine: its ipc sockets, for nobody but its user.

A directory belongs to a live engine as long as somebody holds the lock (flock) on it. The kernel gives the lock back
when the holder ends in whatever way, and it holds between containers that share the folder and not the process ids.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from ..errors import ConfigError

_PREFIX = "callboard-run-"
_UNLOCKED_PREFIX = "callboard-new-"
"""Not looked at by others: a directory gets its name once it is locked."""


class RunDirectory:
    """A new directory of mode 0700 in the folder for temporary files, locked until `close` or the process's end."""

    def __init__(self, folder: Path | None = None) -> None:
        """First removes what dead engines of this user have left. Raises ConfigError if none can be made."""
        folder = folder or Path(tempfile.gettempdir())
        self._lock_fd = -1
        remove_dead_run_directories(folder)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=folder))  # mode 0700 whatever the umask
            try:
                self._lock_fd = _open_directory(self.path)
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.path = self.path.rename(folder / f"{_PREFIX}{secrets.token_hex(4)}")
            except OSError:
                self.close()
                raise
        except OSError as error:
            raise ConfigError(
                f"cannot make a directory for sockets in {folder}: {error.strerror}",
                advice="set TMPDIR to a folder that can be written",
            ) from error

    def close(self) -> None:
        """Remove the directory with what is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def remove_dead_run_directories(folder: Path) -> None:
    """Remove this user's run directories in `folder` that nobody has locked; others' are not touched."""
    for path in folder.glob(f"{_PREFIX}*"):
        try:
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            fd = _open_directory(path)
        except OSError:
            continue  # another engine that starts now was faster
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # its engine lives
        finally:
            os.close(fd)


def _open_directory(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
