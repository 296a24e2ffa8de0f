"""numba's own files, of functions that compiled code calls: they lie in the same folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numba import config

from .code_cache import cache_folder


@contextmanager
def own_cache() -> Iterator[None]:
    """Functions that are given to numba meanwhile are kept there."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(Path(before) / cache_folder().name if before else cache_folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before
