"""X-Request-Id: taken from the client if it is fit for a header and a log line, else made here."""

from __future__ import annotations

import re
import uuid

REQUEST_ID = "x-request-id"

_VISIBLE = re.compile(r"[\x21-\x7e]{1,128}")


def request_id_header(given: str | None) -> str:
    """The id that the answer carries."""
    if given is not None and _VISIBLE.fullmatch(given):
        return given
    return uuid.uuid4().hex
