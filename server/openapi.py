"""GET /openapi.json: the server's own description, OpenAPI 3.1, made from the endpoints and from their types."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import msgspec
from aiohttp import web

from .. import __version__
from .endpoint import EVENTS, JSON, Content, Endpoint
from .http_errors import ErrorBody
from .request_ids import REQUEST_ID

Schema = dict[str, Any]
_Described = dict[object, dict[str, Any]]
"""Type -> its schema."""

ERRORS = {
    400: "The request is wrong, or asks for something that is not supported yet.",
    401: "A valid API key is needed.",
    404: "No such model, or no such request.",
    409: "The session has ended, or has got its last input.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is of another media type than application/json.",
    429: "No room now; Retry-After says when to come again.",
    500: "The engine could not finish the request.",
    503: "The engine drains or has failed.",
}
BODY_ERRORS = (400, 404, 408, 413, 415, 429, 500, 503)
"""Of endpoints that take a body."""
_REF = "#/components/schemas/{name}"
_KEY = "bearer"


class OpenAPIHandlers:
    """Describes `endpoints` and itself. The document is made when it is first asked for: it takes some 20 ms."""

    def __init__(self, endpoints: Iterable[Endpoint], *, has_keys: bool) -> None:
        answers = {200: {JSON: dict[str, Any]}}
        self.endpoint = Endpoint("GET", "/openapi.json", self.openapi, answers)
        self._endpoints = (*endpoints, self.endpoint)
        self._has_keys = has_keys

    async def openapi(self, request: web.Request) -> web.Response:
        """GET /openapi.json: this document."""
        return web.Response(body=self._encoded, content_type=JSON)

    @cached_property
    def _encoded(self) -> bytes:
        return msgspec.json.encode(openapi_document(self._endpoints, has_keys=self._has_keys))


def openapi_document(endpoints: Iterable[Endpoint], *, has_keys: bool) -> Schema:
    """The whole document; a type's component is named after the type."""
    endpoints = tuple(endpoints)
    types = [ErrorBody, *(type_ for endpoint in endpoints for type_ in _types(endpoint))]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    described = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Schema]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, described, has_keys=has_keys)
        paths.setdefault(endpoint.template, {})[endpoint.method.lower()] = operation
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Callboard",
            "version": __version__,
            "summary": "Serves a large language model over the API that OpenAI's clients speak.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": {
                REQUEST_ID: {
                    "description": "The request's own, if it is 1 to 128 visible ASCII characters, else a new one.",
                    "schema": {"type": "string"},
                },
                "retry-after": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}},
            },
        },
    }
    if has_keys:
        document["components"]["securitySchemes"] = {_KEY: {"type": "http", "scheme": "bearer"}}
    return document


def _types(endpoint: Endpoint) -> Iterable[object]:
    if endpoint.request is not None:
        yield endpoint.request
    for content in endpoint.answers.values():
        yield from content.values()
    for parameter in endpoint.parameters:
        yield parameter.type


def _operation(endpoint: Endpoint, described: _Described, *, has_keys: bool) -> Schema:
    name = f"{endpoint.method} {endpoint.template}"
    summary = " ".join((endpoint.handler.__doc__ or name).split()).partition(": ")[2]
    operation: Schema = {"operationId": name.replace("/", "_").replace(" ", ""), "summary": summary}
    if endpoint.parameters:
        operation["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.place,
                "required": parameter.place == "path",
                "description": parameter.description,
                "schema": described[parameter.type],
            }
            for parameter in endpoint.parameters
        ]
    if endpoint.request is not None:
        body = {JSON: {"schema": described[endpoint.request]}}
        operation["requestBody"] = {"required": True, "content": body}
    needs_key = has_keys and endpoint.needs_key
    if needs_key:
        operation["security"] = [{_KEY: []}]
    responses = {status: _response("As asked for.", content, described) for status, content in endpoint.answers.items()}
    for status in {*endpoint.errors, *((401,) if needs_key else ())}:
        responses[status] = _response(ERRORS[status], {JSON: ErrorBody}, described)
    for status in {429, 503} & set(endpoint.errors):
        responses[status]["headers"]["retry-after"] = {"$ref": "#/components/headers/retry-after"}
    operation["responses"] = {str(status): responses[status] for status in sorted(responses)}
    return operation


def _response(description: str, content: Content, described: _Described) -> Schema:
    return {
        "description": description,
        "headers": {REQUEST_ID: {"$ref": f"#/components/headers/{REQUEST_ID}"}},
        "content": {media: _media_type(media, described[type_]) for media, type_ in content.items()},
    }


def _media_type(media: str, schema: Schema) -> Schema:
    """OpenAPI 3.1 has no word for the events of a stream: their type stands in an extension."""
    if media == EVENTS:
        return {"schema": {"type": "string"}, "x-event-schema": schema}
    return {"schema": schema}
