"""How functions here are compiled: without the interpreter's lock, once for all processes of a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba import njit

from .code_cache import own_cache

F = TypeVar("F", bound=Callable[..., object])

_FAST = {"reassoc", "contract", "nsz"}
"""Sums in any order, a product and a sum in one; infinities and NaN count."""
_OPTIONS = {"cache": True, "nogil": True, "fastmath": _FAST, "error_model": "numpy"}
"""numpy's errors: a division by zero is an infinity and no exception, which would keep loops from becoming vectors."""


def compiled(function: F) -> F:
    with own_cache():
        return njit(**_OPTIONS)(function)


def inlined(function: F) -> F:
    """As `compiled`, put in place of its call."""
    with own_cache():
        return njit(**_OPTIONS, inline="always")(function)
