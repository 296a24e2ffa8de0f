"""The streaming sessions whose streams this server writes: who may add input to which."""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict

import msgspec
from aiohttp import web

from ..errors import InvalidRequest
from .session_timing import SessionTiming

MAX_ENDED = 1024
"""Sessions that have ended, and of which an input is told so."""


class OpenSession(msgspec.Struct, frozen=True):
    """One session."""

    owner: bytes
    timing: SessionTiming


class OpenSessions:
    """By id. A session of another key is not there: no answer tells that it exists."""

    def __init__(self) -> None:
        self._open: dict[str, OpenSession] = {}
        self._ended: OrderedDict[str, bytes] = OrderedDict()
        """Their owners, the oldest first."""

    def add(self, session_id: str, http_request: web.Request, timing: SessionTiming) -> None:
        """Its stream has begun."""
        self._open[session_id] = OpenSession(_owner(http_request), timing)

    def remove(self, session_id: str) -> None:
        """Its stream has ended; of any other request nothing is known."""
        session = self._open.pop(session_id, None)
        if session is not None:
            self._ended[session_id] = session.owner
            if len(self._ended) > MAX_ENDED:
                self._ended.popitem(last=False)

    def find(self, session_id: str, http_request: web.Request) -> OpenSession:
        """The session, for who has its key. Raises InvalidRequest: 409 if it has ended, 404 if there is none."""
        owner = _owner(http_request)
        session = self._open.get(session_id)
        if session is not None and hmac.compare_digest(session.owner, owner):
            return session
        if hmac.compare_digest(self._ended.get(session_id, b""), owner):
            raise session_has_ended()
        raise InvalidRequest(
            "there is no session of this id; it stands in each chunk of the session's stream",
            code="session_not_found",
            status=404,
        )


def session_has_ended() -> InvalidRequest:
    """409."""
    return InvalidRequest("the session has ended", code="session_ended", status=409)


def _owner(http_request: web.Request) -> bytes:
    """A digest of the key that came with the request, of no key too."""
    _, _, key = http_request.headers.get("Authorization", "").partition(" ")
    return hashlib.sha256(key.strip().encode("utf-8", "replace")).digest()
