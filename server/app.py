"""The aiohttp application: routes, and the one place where errors become answers."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ..actors.frontend_api import FrontendAPI
from ..errors import RequestError
from ..topology.schema import ServerSection
from .api_keys import ApiKeys, read_api_keys
from .generation import GenerationHandlers
from .http_errors import error_response, from_http_exception, invalid_body, unexpected
from .metrics import ServerMetrics
from .request_ids import REQUEST_ID, request_id_header
from .service_endpoints import ServiceHandlers


def build_app(frontend: FrontendAPI, settings: ServerSection) -> web.Application:
    """The OpenAI-compatible API over `frontend`. Raises ConfigError if the keys file cannot be used."""
    metrics = ServerMetrics(frontend)
    generation = GenerationHandlers(frontend, settings, metrics)
    service = ServiceHandlers(frontend, metrics)
    app = web.Application(
        client_max_size=settings.max_request_bytes,
        middlewares=[_answer_errors(read_api_keys(settings.api_keys_file))],
    )
    app.on_shutdown.append(generation.close)
    app.add_routes(
        [
            web.post("/v1/chat/completions", generation.chat_completions),
            web.post("/v1/completions", generation.completions),
            web.get("/v1/models", service.models),
            web.get("/v1/models/{model:.+}", service.model),
            web.get("/health", service.health),
            web.get("/ready", service.ready),
            web.get("/startup", service.startup),
            web.get("/metrics", service.metrics),
            web.get("/version", service.version),
        ]
    )
    return app


def _answer_errors(api_keys: ApiKeys | None) -> Middleware:
    """Every exception of a handler becomes the OpenAI error body; every answer carries the request's id."""

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            if api_keys is not None and request.path.startswith("/v1/"):
                api_keys.check(request.headers.get("Authorization"))
            response = await handler(request)
        except RequestError as error:
            response = error_response(error)
        except web.HTTPException as error:
            response = error_response(from_http_exception(error, request.method, request.path))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except (web.RequestPayloadError, web.PayloadAccessError) as error:
            response = error_response(invalid_body(error))
        except ConnectionError:
            raise
        except Exception as error:
            response = error_response(unexpected(error))
        if not response.prepared and REQUEST_ID not in response.headers:
            response.headers[REQUEST_ID] = request_id_header(request.headers.get(REQUEST_ID))
        return response

    return answer_errors
