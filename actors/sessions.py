"""The streaming sessions of a frontend: what goes in when, and which have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ..errors import InvalidRequest
from ..mailbox.messages.requests import Extend, Finish, FrontendToTokenizer, SessionInput
from .sender import Sender
from .stream import Stream


class Sessions:
    """Holds which are open, and a timer for each that waits for input; all else is in the streams' records."""

    def __init__(
        self,
        tokenizers: Mapping[str, Sender[FrontendToTokenizer]],
        end: Callable[[Stream, Finish], None],
    ) -> None:
        self._tokenizers = tokenizers
        self._end = end
        self._open: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._takes_more = True

    @property
    def num_open(self) -> int:
        """Those that have not ended."""
        return len(self._open)

    @property
    def num_paused(self) -> int:
        """Those of them that wait for input."""
        return len(self._timers)

    def open(self, stream: Stream) -> None:
        """A session begins."""
        self._open.add(stream.request_id)

    def give(self, stream: Stream, given: SessionInput | None) -> None:
        """Raises: 404 if it is no session, 409 behind its last input, 429 if too much waits."""
        if stream.session is None:
            raise no_session(stream.request_id)
        next_input = stream.session.give(given)
        if next_input is not None:
            self._send(stream, next_input)
        elif stream.session.has_ended:
            self._end_as_paused(stream)

    def pause(self, stream: Stream, finish: Finish) -> None:
        """A turn has ended."""
        next_input = stream.pause(finish)
        assert stream.session is not None
        if next_input is not None:
            self._send(stream, next_input)
        elif stream.session.has_ended:
            self._end_as_paused(stream)
        elif not self._takes_more:
            self._end_for(stream, "abort")
        else:
            loop = asyncio.get_running_loop()
            self._timers[stream.request_id] = loop.call_later(stream.session.idle_s, self._end_for, stream, "timeout")

    def forget(self, stream: Stream) -> None:
        """It has ended, in any way."""
        self._open.discard(stream.request_id)
        self._stop_timer(stream)

    def _stop_timer(self, stream: Stream) -> None:
        timer = self._timers.pop(stream.request_id, None)
        if timer is not None:
            timer.cancel()

    def end_paused(self, stream: Stream) -> None:
        """From now on no input comes: end the session if it waits for some, else at its next pause."""
        self._takes_more = False
        if stream.is_paused:
            self._end_for(stream, "abort")

    def _send(self, stream: Stream, given: SessionInput) -> None:
        """Of one that is lost its `Resume` will bring it."""
        self._stop_timer(stream)
        if not stream.is_lost:
            self._tokenizers[stream.tokenizer].post(Extend(stream.request_id, stream.attempt, given))

    def _end_as_paused(self, stream: Stream) -> None:
        """Its last turn was the last of all."""
        assert stream.session is not None and stream.session.paused is not None
        self._end(stream, stream.session.paused)

    def _end_for(self, stream: Stream, reason: str) -> None:
        assert stream.session is not None and stream.session.paused is not None
        self._end(stream, Finish(reason, stream.session.paused.usage))


def no_session(request_id: str) -> InvalidRequest:
    """404."""
    return InvalidRequest(f"there is no live session {request_id!r}", code="session_not_found", status=404)
