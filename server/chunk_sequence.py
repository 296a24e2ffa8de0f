"""The grammar of a stream: role → content* → finish → usage? → DONE, or at any point an error → DONE.

Pure: deltas in, bytes of server-sent events out. Nothing else makes events, so no stream can have another shape:
every chunk has `finish_reason` (null until the last), a usage chunk comes only if asked for, `[DONE]` ends every
stream.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from ..actors.frontend_api import Delta
from ..errors import EngineFailure, RequestError
from .answer_format import AnswerFormat
from .answer_objects import Answer
from .http_errors import ErrorBody, error_body

COMMENT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class StreamState(Enum):
    """Where a stream stands."""

    OPENING = auto()
    """No chunk yet."""
    CONTENT = auto()
    ENDED = auto()
    """`[DONE]` was made; nothing may follow."""


class ChunkSequence:
    """The events of one stream, in order."""

    def __init__(self, answer_format: AnswerFormat, *, includes_usage: bool) -> None:
        self._format = answer_format
        self._includes_usage = includes_usage
        self.state = StreamState.OPENING

    def on_delta(self, delta: Delta) -> bytes:
        """Events of one delta; the last delta's end the stream. Raises EngineFailure if the stream has ended."""
        parts = []
        match self.state:
            case StreamState.OPENING:
                opening = self._format.opening(delta)
                if opening is not None:
                    parts.append(_event(opening))
                self.state = StreamState.CONTENT
            case StreamState.CONTENT:
                pass
            case StreamState.ENDED:
                raise EngineFailure("the engine sent text after the end of the request")
        if delta.finish is None:
            parts.append(_event(self._format.chunk(delta)))
        elif delta.finish.reason == "error":
            if delta.text or delta.token_ids:
                parts.append(_event(self._format.chunk(msgspec.structs.replace(delta, finish=None))))
            parts.append(self.on_error(finish_error(delta)))
        else:
            parts.append(_event(self._format.chunk(delta)))
            if self._includes_usage:
                parts.append(_event(self._format.usage_chunk(delta)))
            parts.append(DONE)
            self.state = StreamState.ENDED
        return b"".join(parts)

    def on_error(self, error: RequestError) -> bytes:
        """The error event and the end; nothing if the stream has ended already."""
        if self.state is StreamState.ENDED:
            return b""
        self.state = StreamState.ENDED
        return _event(error_body(error)) + DONE


def finish_error(delta: Delta) -> EngineFailure:
    """The error that a delta with the finish reason `error` stands for."""
    assert delta.finish is not None
    return EngineFailure(delta.finish.message or "the engine could not finish the request")


def _event(payload: Answer | ErrorBody) -> bytes:
    return b"data: " + _encoder.encode(payload) + b"\n\n"
