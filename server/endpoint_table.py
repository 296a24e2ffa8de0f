"""All endpoints but /openapi.json, which is made from them."""

from __future__ import annotations

from typing import Literal

from .endpoint import EVENTS, JSON, METRICS_TEXT, Endpoint, Parameter
from .generation import GenerationHandlers
from .openapi import BODY_ERRORS
from .openapi_types import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    SessionInputRequest,
    TokenizeRequest,
)
from .request_endpoints import RequestHandlers
from .request_explanations import RequestList, RequestObject
from .service_endpoints import (
    LoadObject,
    ModelCard,
    ModelList,
    ServiceHandlers,
    StartupObject,
    StatusObject,
    VersionObject,
)
from .session_endpoints import InputAnswer, SessionHandlers
from .tokenize_endpoints import DetokenizeAnswer, TokenizeAnswer, TokenizeHandlers
from .tokenize_request import DetokenizeFields

MODEL = Parameter("model", "path", str, "The served name.")
REQUEST = Parameter("request_id", "path", str, "The `id` of its answer, or the X-Request-Id that it was sent with.")
SESSION = Parameter("id", "path", str, "The session's id, as each chunk of its stream has it.")
COMPAT = Parameter("compat", "query", Literal["none", "vllm"], "Whose names are added; default: server.metrics_compat.")


def generating(handlers: GenerationHandlers) -> tuple[Endpoint, ...]:
    """What answers with a model's text."""
    return (
        Endpoint(
            "POST",
            "/v1/chat/completions",
            handlers.chat_completions,
            {200: {JSON: ChatCompletion, EVENTS: ChatCompletionChunk}},
            BODY_ERRORS,
            ChatCompletionRequest,
            needs_key=True,
        ),
        Endpoint(
            "POST",
            "/v1/completions",
            handlers.completions,
            {200: {JSON: Completion, EVENTS: Completion}},
            BODY_ERRORS,
            CompletionRequest,
            needs_key=True,
        ),
    )


def conversing(handlers: SessionHandlers) -> tuple[Endpoint, ...]:
    """What adds to a streaming session."""
    return (
        Endpoint(
            "POST",
            "/v1/requests/{id}/input",
            handlers.add_input,
            {202: {JSON: InputAnswer}},
            (*BODY_ERRORS, 409),
            SessionInputRequest,
            parameters=(SESSION,),
            needs_key=True,
        ),
    )


def tokenizing(handlers: TokenizeHandlers) -> tuple[Endpoint, ...]:
    """What asks a tokenizer; each under two paths, for servers differ in them."""
    rows = (
        ("/tokenize", handlers.tokenize, TokenizeAnswer, TokenizeRequest),
        ("/detokenize", handlers.detokenize, DetokenizeAnswer, DetokenizeFields),
    )
    return tuple(
        Endpoint("POST", prefix + path, handler, {200: {JSON: answer}}, BODY_ERRORS, request, needs_key=True)
        for path, handler, answer, request in rows
        for prefix in ("", "/v1")
    )


def explaining(handlers: RequestHandlers) -> tuple[Endpoint, ...]:
    """What tells of requests."""
    return (
        Endpoint("GET", "/v1/requests", handlers.requests, {200: {JSON: RequestList}}, needs_key=True),
        Endpoint(
            "GET",
            "/v1/requests/{request_id:[^/]+}",
            handlers.request,
            {200: {JSON: RequestObject}},
            (404, 429, 500, 503),
            parameters=(REQUEST,),
            needs_key=True,
        ),
    )


def looking(handlers: ServiceHandlers) -> tuple[Endpoint, ...]:
    """What only reads. All but the models are open, for probes and scrapers."""
    status = {200: {JSON: StatusObject}, 503: {JSON: StatusObject}}
    return (
        Endpoint("GET", "/v1/models", handlers.models, {200: {JSON: ModelList}}, needs_key=True),
        Endpoint(
            "GET",
            "/v1/models/{model:.+}",
            handlers.model,
            {200: {JSON: ModelCard}},
            (404,),
            parameters=(MODEL,),
            needs_key=True,
        ),
        Endpoint("GET", "/health", handlers.health, status),
        Endpoint("GET", "/ping", handlers.health, status),
        Endpoint("GET", "/ready", handlers.ready, status),
        Endpoint("GET", "/startup", handlers.startup, {200: {JSON: StartupObject}}),
        Endpoint("GET", "/load", handlers.load, {200: {JSON: LoadObject}}),
        Endpoint("GET", "/metrics", handlers.metrics, {200: {METRICS_TEXT: str}}, (400,), parameters=(COMPAT,)),
        Endpoint("GET", "/version", handlers.version, {200: {JSON: VersionObject}}),
    )
