"""The grammar of a stream: for each choice role → content* → finish, of all choices in any order; then usage? → DONE.

Or at any point an error → DONE, which ends all choices. Pure: deltas in, bytes of server-sent events out. Nothing else
makes events, so no stream can have another shape: every chunk has `finish_reason` (null until its choice's last), a
usage chunk comes only if asked for, `[DONE]` ends every stream.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from ..actors.frontend_api import Delta
from ..errors import EngineFailure, InvalidRequest, RequestAtFault, RequestError
from ..mailbox.messages.requests import Finish
from .answer_format import AnswerFormat
from .answer_objects import Answer
from .http_errors import ErrorBody, error_body

COMMENT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class StreamState(Enum):
    """Where a stream stands."""

    LIVE = auto()
    ENDED = auto()
    """`[DONE]` was made; nothing may follow."""


class ChunkSequence:
    """The events of one stream, in order."""

    def __init__(self, answer_format: AnswerFormat, *, num_choices: int, includes_usage: bool) -> None:
        self._format = answer_format
        self._num_choices = num_choices
        self._includes_usage = includes_usage
        self._opened: set[int] = set()
        self._finishes: dict[int, Finish] = {}
        self.state = StreamState.LIVE

    def on_delta(self, delta: Delta) -> bytes:
        """Events of one delta; the last choice's last end the stream.

        Raises EngineFailure if the choice or the stream has ended.
        """
        if self.state is StreamState.ENDED or delta.choice in self._finishes:
            raise EngineFailure(f"the engine sent text after the end of choice {delta.choice}")
        parts = []
        if delta.choice not in self._opened:
            opening = self._format.opening(delta, is_first=not self._opened)
            if opening is not None:
                parts.append(_event(opening))
            self._opened.add(delta.choice)
        if delta.finish is None:
            parts.append(self._chunk(delta))
        elif delta.finish.reason == "error":
            if delta.text or delta.token_ids:
                parts.append(self._chunk(msgspec.structs.replace(delta, finish=None)))
            parts.append(self.on_error(finish_error(delta)))
        else:
            parts.append(self._chunk(delta))
            self._finishes[delta.choice] = delta.finish
            if len(self._finishes) == self._num_choices:
                parts.append(self._end())
        return b"".join(parts)

    def _chunk(self, delta: Delta) -> bytes:
        chunk = self._format.chunk(delta)
        return b"" if chunk is None else _event(chunk)

    def _end(self) -> bytes:
        self.state = StreamState.ENDED
        if not self._includes_usage:
            return DONE
        finishes = [self._finishes[choice] for choice in sorted(self._finishes)]
        return _event(self._format.usage_chunk(finishes)) + DONE

    def on_error(self, error: RequestError) -> bytes:
        """The error event and the end; nothing if the stream has ended already."""
        if self.state is StreamState.ENDED:
            return b""
        self.state = StreamState.ENDED
        return _event(error_body(error)) + DONE


def is_refusal(delta: Delta) -> bool:
    """The choice ends because the request itself is at fault, such as by a grammar that cannot be compiled."""
    return delta.finish is not None and delta.finish.reason == "error" and delta.finish.status < 500


def finish_error(delta: Delta) -> RequestError:
    """The error that a delta with the finish reason `error` stands for."""
    finish = delta.finish
    assert finish is not None
    message = finish.message or "the engine could not finish the request"
    return RequestAtFault(message) if finish.status >= 500 else InvalidRequest(message, status=finish.status)


def _event(payload: Answer | ErrorBody) -> bytes:
    return b"data: " + _encoder.encode(payload) + b"\n\n"
