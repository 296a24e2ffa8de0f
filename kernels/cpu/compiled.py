"""How functions here are compiled: without the interpreter's lock, once for all processes of a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba import njit

from .numba_cache import own_cache

F = TypeVar("F", bound=Callable[..., object])

_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy"}
"""numpy's errors: a division by zero is an infinity and no exception, which would keep loops from becoming vectors.

No fastmath: it lets the compiler add and fuse in an order of its own, another one in each place that a function is put
into, and code that was just compiled is put together otherwise than code from the disk. So the order stands in the
source: sums are `reductions`, products with a sum are `floats.fma`.
"""


def compiled(function: F) -> F:
    with own_cache():
        return njit(**_OPTIONS)(function)


def inlined(function: F) -> F:
    """As `compiled`, put in place of its call."""
    with own_cache():
        return njit(**_OPTIONS, inline="always")(function)
