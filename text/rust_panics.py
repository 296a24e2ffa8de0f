"""Panics of the `tokenizers` library as exceptions of this package.

Where its Rust code meets what its author did not think of (a merge shorter than the prefix that it should have), the
library raises `pyo3_runtime.PanicException`. That is no `Exception`, so it would pass by whatever handles errors and
end a whole process for one file or one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import CallboardError


@contextmanager
def panics_as(error: Callable[[str], CallboardError]) -> Iterator[None]:
    """Raises `error(sentence)` in place of a panic."""
    try:
        yield
    except Exception:
        raise
    except BaseException as panic:
        if type(panic).__module__ != "pyo3_runtime":
            raise
        raise error(f"the tokenizer library has failed: {str(panic)[:500]}") from None
