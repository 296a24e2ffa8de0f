"""Where a body is parsed: small ones on the loop, large ones in a thread, so that streams go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import Overloaded

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""Measured on 2 cores: a text of this size takes 0.15 ms, the worst JSON of this size 6 ms."""
MAX_WAITING = 64
"""Large bodies that wait for the thread or are in it; one more is a 429."""


class BodyParser:
    """One thread: more would only share the interpreter with the loop."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parse")
        self.num_waiting = 0

    async def parse(self, body: bytes, parse: Callable[[bytes], T]) -> T:
        """`parse(body)`. Raises what it raises; Overloaded if too many wait.

        A caller that is cancelled gets its cancellation when the thread is done with the body, so that whoever counts
        the body's bytes counts them as long as they are held.
        """
        if len(body) <= INLINE_BYTES:
            return parse(body)
        if self.num_waiting >= MAX_WAITING:
            raise Overloaded("too many large requests wait to be parsed; try again in a second", retry_after_s=1)
        self.num_waiting += 1
        work = self._executor.submit(parse, body)
        parsed = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(parsed)
        except asyncio.CancelledError:
            if not work.cancel():  # the thread has begun
                await asyncio.wait({parsed})
                parsed.exception()  # taken, so that it is not reported as forgotten
            raise
        finally:
            self.num_waiting -= 1

    def close(self) -> None:
        """What the thread has not begun is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)
