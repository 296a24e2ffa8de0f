"""The OpenAI error body: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import math

import msgspec
from aiohttp import web

from ..errors import EngineFailure, InvalidRequest, RequestAtFault, RequestError

logger = logging.getLogger("callboard.server")

MAX_PATH_CHARS = 200
MAX_MESSAGE_CHARS = 2000
"""Error bodies stay small whatever the client sent."""


class ErrorObject(msgspec.Struct, frozen=True, gc=False):
    """What stands under `error`; `code` is a short word or null."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True, gc=False):
    """The whole body of an error answer, and the payload of an error event in a stream."""

    error: ErrorObject


def printable(text: str) -> str:
    """`text` cut to the limit, without lone surrogates, which JSON in UTF-8 cannot carry."""
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[:MAX_MESSAGE_CHARS] + "…"
    return text.encode("utf-8", "replace").decode("utf-8")


def error_body(error: RequestError) -> ErrorBody:
    """The body that answers a request with `error`."""
    param = None if error.param is None else printable(error.param)
    return ErrorBody(ErrorObject(printable(error.message), error.type, param, error.code))


def encoded_error(error: RequestError) -> bytes:
    """The body as it is sent."""
    return msgspec.json.encode(error_body(error))


def error_response(error: RequestError) -> web.Response:
    """A whole HTTP answer: status, body, Retry-After where the error has one (a 429 and a 503 always have), and the
    OpenAI clients' word for an error that is not to be tried again."""
    response = web.Response(status=error.status, body=encoded_error(error), content_type="application/json")
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.status in (429, 503):
        retry_after_s = 1
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    if isinstance(error, RequestAtFault):
        response.headers["x-should-retry"] = "false"
    return response


def from_http_exception(error: web.HTTPException, method: str, path: str) -> RequestError:
    """aiohttp's own answers (no such path, wrong method, body too large) in the same shape."""
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return InvalidRequest(f"the request body is too large: {error.text}", code="request_too_large", status=413)
    if isinstance(error, web.HTTPNotFound):
        return InvalidRequest(
            f"there is no {path[:MAX_PATH_CHARS]!r} here; GET /openapi.json lists what there is",
            code="unknown_path",
            status=404,
        )
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return InvalidRequest(
            f"{method} is not allowed at {path[:MAX_PATH_CHARS]!r}; allowed: {allowed}",
            code="method_not_allowed",
            status=405,
        )
    kind = InvalidRequest.type if error.status < 500 else EngineFailure.type
    return RequestError(f"{error.status} {error.reason}", status=error.status, type=kind)


def invalid_body(error: Exception) -> InvalidRequest:
    """The body broke off, or is not what its Content-Encoding says."""
    return InvalidRequest(f"the request body cannot be read: {' '.join(str(error).split())}", code="invalid_body")


def unexpected(error: Exception) -> EngineFailure:
    """For an exception that nobody foresaw: logged with its traceback here, told to the client without it."""
    logger.error("server.unexpected_error", exc_info=error)
    return EngineFailure("internal error in the server; its log has the details", code="internal_error")
