"""The run directory: closed to others, kept while its engine lives, removed by the next one when it has died."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from callboard.actors.run_directory import RunDirectory, remove_dead_run_directories
from callboard.errors import ConfigError

HOLD = (
    "import sys; from pathlib import Path; from callboard.actors.run_directory import RunDirectory; "
    "print(RunDirectory(Path(sys.argv[1])).path, flush=True); sys.stdin.read()"
)


def test_nobody_else_gets_in(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        directory = RunDirectory(tmp_path)
    finally:
        os.umask(old)
    status = directory.path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.getuid())
    directory.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_user_reaches_no_socket_in_it() -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    directory = RunDirectory(folder)
    try:
        assert "ConnectionRefusedError" in reached_by_nobody(folder / "open")
        assert "PermissionError" in reached_by_nobody(directory.path / "closed")
    finally:
        directory.close()
        shutil.rmtree(folder)


def reached_by_nobody(path: Path) -> str:
    """The error with which the user 65534 fails to connect to a socket of any mode at `path` that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        path.chmod(0o777)
        attempt = f"import socket, os; os.setuid(65534); socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        return subprocess.run([sys.executable, "-I", "-c", attempt], capture_output=True, text=True, check=False).stderr


def test_close_removes_it_with_its_content(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    (directory.path / "a.1").write_text("")
    directory.close()
    directory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_live_engines_directory_stays(tmp_path: Path) -> None:
    """Also one of another process, whatever its pid means here: pids differ between containers."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        ours = RunDirectory(tmp_path)
        assert set(tmp_path.iterdir()) == {theirs, ours.path}
        process.kill()
        process.wait()
        assert theirs.is_dir()
        next_one = RunDirectory(tmp_path)
        assert set(tmp_path.iterdir()) == {ours.path, next_one.path}
    finally:
        process.kill()
        process.communicate()
    ours.close()
    next_one.close()


def test_what_is_not_ours_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "callboard-run-file").write_text("")
    (tmp_path / "callboard-other").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "callboard-run-link").symlink_to(target)
    (tmp_path / "callboard-run-dead").mkdir()
    before = set(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)
        remove_dead_run_directories(tmp_path)
    assert set(tmp_path.iterdir()) == before
    remove_dead_run_directories(tmp_path)
    assert before - set(tmp_path.iterdir()) == {tmp_path / "callboard-run-dead"}
    assert target.is_dir()


def test_the_lock_ends_with_close_and_is_not_inherited(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    fd = os.open(directory.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    command = [sys.executable, "-I", "-c", "print(flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    try:
        child.stdout.readline()  # Popen may return a moment before the child's exec has closed what it inherited
        directory.close()
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.kill()
        child.communicate()
        os.close(fd)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        RunDirectory(tmp_path / "none")
