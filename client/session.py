"""A streaming session: an answer that pauses where it would end, and goes on behind what is sent then.

async with client.session("Once upon a time", max_tokens=20) as session:
    async for delta in session.turn():
        print(delta.text, end="")
    await session.send(" And then", last=True)
    async for delta in session.turn():
        print(delta.text, end="")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType

from .delta_stream import DeltaStream
from .deltas import ClientDelta

SendInput = Callable[[str, str | Sequence[int] | None, bool], Awaitable[None]]
"""(session id, prompt, is_last)"""


class Session:
    """One session, for the length of an `async with` block; leaving the block aborts it unless it has ended.

    One task reads turns; any may send.
    """

    def __init__(self, stream: DeltaStream, send: SendInput) -> None:
        self._stream = stream
        self._send = send
        self._first: ClientDelta | None = None
        """Until a turn has given it."""
        self.session_id = ""
        self.has_ended = False
        """The last turn's end was read."""

    async def __aenter__(self) -> Session:
        """Opened, and the first token is there. Raises RequestError, as any call."""
        self._first = await anext(self._stream)
        self.session_id = self._first.request_id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stream.aclose()

    async def turn(self) -> AsyncGenerator[ClientDelta, None]:
        """What is left of the present turn; its last delta has `finish_reason` and `usage`, of the turn. Once one has
        been read it waits for the next, which begins with input. Nothing if the session has ended.

        A turn that is left before its end goes on with the next call. Raises RequestError: the engine's, or
        InvalidRequest if the input before did not fit the model.
        """
        while not self.has_ended:
            delta = await self._next()
            if delta is None:
                self.has_ended = True
                return
            is_end = delta.finish_reason is not None
            self.has_ended = is_end and not delta.is_paused
            yield delta
            if is_end:
                return

    async def send(self, prompt: str | Sequence[int], *, last: bool = False) -> None:
        """Input for the next turn, text or token ids; given before the turn's end it waits there. `last`: the end of
        the turn that it begins is the session's.

        Raises InvalidRequest (409 behind the last one or the end), Overloaded if too many wait.
        """
        await self._send(self.session_id, prompt, last)

    async def finish(self) -> None:
        """No more comes: the session ends with what it has been given. Raises as `send`."""
        await self._send(self.session_id, None, True)

    async def _next(self) -> ClientDelta | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return await anext(self._stream, None)
