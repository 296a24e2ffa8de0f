"""From the server's error answers back to the error tree."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..errors import EngineFailure, InvalidRequest, Overloaded, RequestError, Unavailable, UnknownModel
from .deltas import Chunk, ErrorDetails

_BY_STATUS: dict[int, type[RequestError]] = {404: UnknownModel, 429: Overloaded, 503: Unavailable}
_BY_TYPE: dict[str, type[RequestError]] = {
    kind.type: kind for kind in (InvalidRequest, UnknownModel, Overloaded, Unavailable)
}


def error_from_answer(status: int, headers: Mapping[str, str], body: bytes) -> RequestError:
    """The error of an answer with a status that is not 200; a 404 for a path is a RequestError of status 404."""
    try:
        details = msgspec.json.decode(body, type=Chunk).error or ErrorDetails()
    except msgspec.DecodeError:
        details = ErrorDetails()
    kind = _BY_STATUS.get(status, EngineFailure if status >= 500 else InvalidRequest)
    seconds = headers.get("Retry-After", "")
    return kind(
        details.message or f"the server answered with status {status}",
        param=details.param,
        code=_code(details),
        retry_after_s=int(seconds) if seconds.isdecimal() else None,
        status=status,
        type=details.type,
    )


def error_from_event(details: ErrorDetails) -> RequestError:
    """The error of an error event in a stream that had begun."""
    kind = _BY_TYPE.get(details.type or "", EngineFailure)
    return kind(
        details.message or "the server ended the stream with an error", param=details.param, code=_code(details)
    )


def _code(details: ErrorDetails) -> str | None:
    return None if details.code is None else str(details.code)
