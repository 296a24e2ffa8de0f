"""Coroutines of one event loop that wait for the same condition."""

from __future__ import annotations

import asyncio


class Waiters:
    """`wait()` returns at the next `wake_all()`; the caller looks at its condition again, in a loop."""

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._futures)

    async def wait(self) -> None:
        """Wait for the next `wake_all()`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)

    def wake_all(self) -> None:
        """Let everyone who waits now go on."""
        for future in self._futures:
            if not future.done():
                future.set_result(None)
