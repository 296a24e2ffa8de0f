"""`RequestError` as a message, and back."""

from __future__ import annotations

from ..errors import RequestError
from ..mailbox.messages.requests import Refused


def refused(request_id: str, attempt: int, error: RequestError) -> Refused:
    """The message that tells a frontend of `error`, for all choices of a request."""
    return Refused(
        request_id,
        0,
        attempt,
        error.status,
        error.type,
        error.message,
        error.param,
        error.code,
        error.retry_after_s,
    )


def error_of(refused: Refused) -> RequestError:
    """What the reader of a stream is to get."""
    return RequestError(
        refused.message,
        param=refused.param,
        code=refused.code,
        retry_after_s=refused.retry_after_s,
        status=refused.status,
        type=refused.error_type,
    )
