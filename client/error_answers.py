"""From the server's error answers back to the error tree."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from ..errors import (
    EngineFailure,
    InvalidRequest,
    MalformedAnswer,
    NotSupportedYet,
    Overloaded,
    RequestAtFault,
    RequestError,
    Unauthorized,
    Unavailable,
    UnknownModel,
)
from .wire import ErrorDetails, WireAnswer

_BY_STATUS: dict[int, type[RequestError]] = {401: Unauthorized, 403: Unauthorized, 429: Overloaded, 503: Unavailable}
_BY_TYPE: dict[str, type[RequestError]] = {
    kind.type: kind for kind in (InvalidRequest, Unauthorized, UnknownModel, Overloaded, Unavailable)
}
_NOT_SUPPORTED = " is not supported yet"
_NO_MODEL = {"unknown_path", "request_not_found", "session_not_found"}
"""Codes of a 404 that is not about a model."""


def error_from_answer(status: int, headers: Mapping[str, str], body: bytes) -> RequestError:
    """The error of an answer with a status that is not 200.

    A 404 that says nothing of a model, of a wrong path or of a proxy, is an InvalidRequest of status 404.
    """
    try:
        details = msgspec.json.decode(body, type=WireAnswer).error
    except msgspec.DecodeError:
        details = None
    kind = _kind(status, headers, details)
    details = details or ErrorDetails()
    message = details.message or f"the server answered with status {status}"
    if details.code == "not_supported_yet" and message.endswith(_NOT_SUPPORTED):
        return NotSupportedYet(message.removesuffix(_NOT_SUPPORTED), param=details.param)
    return kind(
        message,
        param=details.param,
        code=_code(details),
        retry_after_s=retry_after_s(headers),
        status=status,
        type=details.type,
    )


def error_from_event(details: ErrorDetails) -> RequestError:
    """The error of an error event in a stream that had begun."""
    kind = _BY_TYPE.get(details.type or "", EngineFailure)
    return kind(
        details.message or "the server ended the stream with an error", param=details.param, code=_code(details)
    )


def retry_after_s(headers: Mapping[str, str]) -> int | None:
    """Whole seconds, rounded up; None for a date, which is of another clock."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return math.ceil(seconds) if 0 <= seconds < math.inf else None


def _kind(status: int, headers: Mapping[str, str], details: ErrorDetails | None) -> type[RequestError]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status == 404:
        return InvalidRequest if details is None or details.code in _NO_MODEL else UnknownModel
    if status < 400:  # a redirection: followed, it would carry prompt and key to another place
        return MalformedAnswer
    if status < 500:
        return InvalidRequest
    return RequestAtFault if headers.get("x-should-retry") == "false" else EngineFailure


def _code(details: ErrorDetails) -> str | None:
    return None if details.code is None else str(details.code)
