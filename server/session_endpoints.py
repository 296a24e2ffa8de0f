"""POST /v1/requests/{id}/input: more input for a streaming session, whose stream another connection reads."""

from __future__ import annotations

import msgspec
from aiohttp import web

from ..actors.frontend_api import FrontendAPI
from ..errors import RequestError
from ..topology.schema import ServerSection
from .body_parser import BodyParser
from .body_reader import BodyBudget, read_body
from .json_values import check_num_values
from .open_sessions import OpenSessions, session_has_ended
from .request_body import ignored_header, parse_body
from .served_model import served_model
from .service_endpoints import json_response
from .session_request import InputRequest, parse_input


class InputAnswer(msgspec.Struct, frozen=True):
    """The input was taken."""

    id: str
    """The session's."""
    last: bool
    object: str = "session.input"


class SessionHandlers:
    """`sessions`, `bodies` and `parser` are those of the generating endpoints."""

    def __init__(
        self,
        frontend: FrontendAPI,
        settings: ServerSection,
        sessions: OpenSessions,
        bodies: BodyBudget,
        parser: BodyParser,
    ) -> None:
        self._frontend = frontend
        self._settings = settings
        self._sessions = sessions
        self._bodies = bodies
        self._parser = parser

    async def add_input(self, http_request: web.Request) -> web.Response:
        """POST /v1/requests/{id}/input: more input for a streaming session; used where its turn ends."""
        session_id = http_request.match_info["id"]
        self._sessions.find(session_id, http_request)  # before the body is read
        settings = self._settings
        with self._bodies.share() as share:
            body = await read_body(
                http_request, share, max_bytes=settings.max_request_bytes, stall_s=settings.client_stall_s
            )
            request = await self._parser.parse(body, self._parse)
        session = self._sessions.find(session_id, http_request)
        try:
            self._frontend.add_input(session_id, request.given)
        except RequestError as error:
            if error.status == 404:  # the last of its stream is on its way to the client
                raise session_has_ended() from None
            raise
        if request.given is not None:
            session.timing.on_input()
        response = json_response(InputAnswer(session_id, request.given is None or request.given.is_last), 202)
        if request.ignored_fields:
            response.headers["x-ignored-fields"] = ignored_header(request.ignored_fields)
        return response

    def _parse(self, body: bytes) -> InputRequest:
        check_num_values(body, self._frontend.max_model_len)
        return parse_input(parse_body(body), served_model(self._frontend, self._settings))
