"""The aiohttp application: routes, and the one place where errors become answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ..actors.frontend_api import FrontendAPI
from ..errors import InvalidRequest, RequestError
from ..topology.schema import ServerSection
from .api_keys import read_api_keys
from .body_parser import BodyParser
from .body_reader import HELD_BODIES, HELD_BYTES, BodyBudget
from .callers import Callers
from .endpoint import JSON, Endpoint
from .endpoint_table import conversing, explaining, generating, looking, tokenizing
from .generation import GenerationHandlers
from .http_errors import error_response, from_http_exception, invalid_body, unexpected
from .http_metrics import CLIENT_GONE, HttpMetrics
from .metrics import ServerMetrics
from .open_sessions import OpenSessions
from .openapi import OpenAPIHandlers
from .request_endpoints import RequestHandlers
from .request_ids import REQUEST_ID, request_id_header
from .request_records import RequestRecords
from .service_endpoints import ServiceHandlers
from .session_endpoints import SessionHandlers
from .tokenize_endpoints import TokenizeHandlers

UNTYPED = "application/octet-stream"
GUARDED_PREFIX = "/v1/"
"""Needs a key whether or not there is such an endpoint."""


def build_app(frontend: FrontendAPI, settings: ServerSection) -> web.Application:
    """The OpenAI-compatible API over `frontend`. Raises ConfigError if the keys file cannot be used."""
    api_keys = read_api_keys(settings.api_keys_file)
    callers = Callers(api_keys)
    metrics = ServerMetrics(frontend)
    bodies = BodyBudget(max(HELD_BYTES, HELD_BODIES * settings.max_request_bytes))
    parser = BodyParser()
    records, sessions = RequestRecords(), OpenSessions()
    generation = GenerationHandlers(frontend, settings, metrics, bodies, parser, records, callers, sessions)
    endpoints = (
        *generating(generation),
        *conversing(SessionHandlers(frontend, settings, sessions, bodies, parser)),
        *explaining(RequestHandlers(frontend, records, callers)),
        *tokenizing(TokenizeHandlers(frontend, settings, metrics, bodies, parser)),
        *looking(ServiceHandlers(frontend, settings, metrics)),
    )
    openapi = OpenAPIHandlers(endpoints, has_keys=api_keys is not None)
    endpoints = (*endpoints, openapi.endpoint)
    app = web.Application(
        client_max_size=settings.max_request_bytes,
        middlewares=[_answer_errors(endpoints, callers, metrics.http)],
    )
    app.on_shutdown.append(generation.close)
    add_route = {"GET": web.get, "POST": web.post}
    app.add_routes([add_route[endpoint.method](endpoint.path, endpoint.handler) for endpoint in endpoints])
    return app


def _answer_errors(endpoints: Iterable[Endpoint], callers: Callers, http: HttpMetrics) -> Middleware:
    """Every exception of a handler becomes the OpenAI error body; every answer has the request's id, and is counted."""
    by_template = {endpoint.template: endpoint for endpoint in endpoints}

    async def answer(request: web.Request, handler: Handler, endpoint: Endpoint | None) -> web.StreamResponse:
        try:
            is_guarded = request.path.startswith(GUARDED_PREFIX) or (endpoint is not None and endpoint.needs_key)
            if is_guarded:
                callers.check(request)
            if endpoint is not None and endpoint.request is not None:
                _check_content_type(request)
            return await handler(request)
        except RequestError as error:
            return error_response(error)
        except web.HTTPException as error:
            response = error_response(from_http_exception(error, request.method, request.path))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except (web.RequestPayloadError, web.PayloadAccessError) as error:
            return error_response(invalid_body(error))
        except ConnectionError:
            raise
        except Exception as error:
            return error_response(unexpected(error))

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        endpoint = None if resource is None else by_template.get(resource.canonical)
        path = None if endpoint is None else endpoint.template
        try:
            response = await answer(request, handler, endpoint)
        except (ConnectionError, asyncio.CancelledError):
            http.count(path, request.method, CLIENT_GONE)
            raise
        http.count(path, request.method, response.status)
        if not response.prepared and REQUEST_ID not in response.headers:
            response.headers[REQUEST_ID] = request_id_header(request.headers.get(REQUEST_ID))
        return response

    return answer_errors


def _check_content_type(request: web.Request) -> None:
    """A body is JSON, and what does not say what it is, is taken for it. Raises InvalidRequest (415).

    It also keeps web pages of other origins from sending requests through a browser: forms and plain text are what they
    can send without the server's leave.
    """
    given = request.headers.get("Content-Type")
    if given is not None and request.content_type not in (JSON, UNTYPED):
        raise InvalidRequest(
            f"Content-Type is {given[:100]!r}; a request body here is {JSON}", code="unsupported_media_type", status=415
        )
