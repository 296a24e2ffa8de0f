"""POST /tokenize and /detokenize: what a prompt becomes, without generating."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from ..actors.frontend_api import FrontendAPI
from ..topology.schema import ServerSection
from .body_parser import BodyParser
from .body_reader import BodyBudget, BodyShare, read_body
from .event_writer import ClientGone, ClientStalled, end_answer
from .json_values import check_num_values
from .metrics import ServerMetrics
from .request_body import RequestBody, ignored_header, parse_body
from .request_ids import REQUEST_ID, request_id_header
from .served_model import served_model
from .service_endpoints import json_response
from .tokenize_request import (
    DetokenizeRequest,
    TokenizeRequest,
    parse_detokenize_request,
    parse_tokenize_request,
)

T = TypeVar("T")


class TokenizeAnswer(msgspec.Struct, frozen=True):
    """The answer of /tokenize; `token_strs` is null unless asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    """The answer of /detokenize: the text of the ids, special tokens included."""

    prompt: str


class TokenizeHandlers:
    """Both endpoints over one frontend; `bodies` and `parser` are those of the generating endpoints."""

    def __init__(
        self,
        frontend: FrontendAPI,
        settings: ServerSection,
        metrics: ServerMetrics,
        bodies: BodyBudget,
        parser: BodyParser,
    ) -> None:
        self._frontend = frontend
        self._settings = settings
        self._metrics = metrics
        self._bodies = bodies
        self._parser = parser

    async def tokenize(self, http_request: web.Request) -> web.Response:
        """POST /tokenize: token ids of a text, or of messages in the model's chat template."""
        frontend = self._frontend

        def parse(body: RequestBody) -> TokenizeRequest:
            return parse_tokenize_request(body, served_model(frontend, self._settings))

        with self._bodies.share() as share:
            request = await self._parsed(http_request, share, parse)
            tokenized = await frontend.tokenize(
                request.prompt, request.options, returns_strings=request.returns_strings
            )
        answer = TokenizeAnswer(
            len(tokenized.token_ids), frontend.max_model_len, tokenized.token_ids, tokenized.token_strings
        )
        return await self._answer(http_request, answer, request.ignored_fields)

    async def detokenize(self, http_request: web.Request) -> web.Response:
        """POST /detokenize: the text of token ids, special tokens included."""
        frontend = self._frontend

        def parse(body: RequestBody) -> DetokenizeRequest:
            return parse_detokenize_request(body, served_model(frontend, self._settings))

        with self._bodies.share() as share:
            request = await self._parsed(http_request, share, parse)
            text = await frontend.detokenize(request.token_ids)
        return await self._answer(http_request, DetokenizeAnswer(text), request.ignored_fields)

    async def _parsed(self, http_request: web.Request, share: BodyShare, parse: Callable[[RequestBody], T]) -> T:
        """Raises RequestError."""

        def parse_bytes(body: bytes) -> T:
            check_num_values(body, self._frontend.max_model_len)
            return parse(parse_body(body))

        settings = self._settings
        body = await read_body(
            http_request, share, max_bytes=settings.max_request_bytes, stall_s=settings.client_stall_s
        )
        return await self._parser.parse(body, parse_bytes)

    async def _answer(
        self, http_request: web.Request, answer: msgspec.Struct, ignored_fields: list[str]
    ) -> web.Response:
        """Answers may be large: a client that takes nothing is given up, as everywhere."""
        response = json_response(answer)
        response.headers[REQUEST_ID] = request_id_header(http_request.headers.get(REQUEST_ID))
        if ignored_fields:
            response.headers["x-ignored-fields"] = ignored_header(ignored_fields)
        await response.prepare(http_request)
        try:
            await end_answer(http_request, response, self._settings.client_stall_s)
        except (ClientGone, ConnectionError) as error:
            self._metrics.requests.num_stalled_clients += isinstance(error, ClientStalled)
        return response
