"""Where compiled code lies on the disk: in a folder named by the contents of all files of this package.

numba looks for changes in a function's own file. What is compiled into it from others (an `exp`, a tile) would stay as
it was before an upgrade.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from numba import config

_HERE = Path(__file__).parent


def fingerprint(package: Path) -> str:
    """Of its Python files, names and contents."""
    digest = sha256()
    for path in sorted(package.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@lru_cache
def cache_folder() -> Path:
    """Beside the package if it may be written, or else the user's own."""
    beside = _HERE / "__pycache__" / fingerprint(_HERE)
    with suppress(OSError):
        beside.mkdir(parents=True, exist_ok=True)
    if os.access(beside, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard" / beside.name


def has_compiled_code() -> bool:
    """Whether something of this version is kept already."""
    return any(_folder().rglob("*.nbi"))


@contextmanager
def own_cache() -> Iterator[None]:
    """Functions that are given to numba meanwhile are kept there; NUMBA_CACHE_DIR, if it is set, moves the folder."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _folder() -> Path:
    return Path(config.CACHE_DIR) / cache_folder().name if config.CACHE_DIR else cache_folder()
