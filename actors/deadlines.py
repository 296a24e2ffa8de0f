"""A request's deadline, by CLOCK_MONOTONIC, which is also the clock of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .faults import Faults


def has_passed(deadline_ns: int | None) -> bool:
    """None: there is none, and it never passes."""
    return deadline_ns is not None and time.monotonic_ns() >= deadline_ns


@contextmanager
def at_deadline(deadline_ns: int | None, end: Callable[[], None], faults: Faults) -> Iterator[None]:
    """If it passes inside the block `end` is called, from the event loop; what that raises goes to `faults`."""
    if deadline_ns is None:
        yield
        return

    def on_time() -> None:
        try:
            end()
        except Exception as error:  # the loop calls this: without a report the error would be logged, and no more
            faults.report(error)

    timer = asyncio.get_running_loop().call_at(deadline_ns / 1e9, on_time)
    try:
        yield
    finally:
        timer.cancel()
