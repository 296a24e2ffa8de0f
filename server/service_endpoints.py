"""The endpoints that generate nothing: models, health, readiness, start, metrics, version."""

from __future__ import annotations

import time

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from .. import __version__
from ..actors.frontend_api import ActorStart, FrontendAPI
from ..errors import UnknownModel
from .metrics import ServerMetrics


class ModelCard(msgspec.Struct, frozen=True):
    """A model as /v1/models lists it."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "callboard"


class ModelList(msgspec.Struct, frozen=True):
    """The answer of GET /v1/models."""

    data: list[ModelCard]
    object: str = "list"


class StatusObject(msgspec.Struct, frozen=True):
    """The answer of /health and /ready."""

    status: str
    reason: str


class StartupObject(msgspec.Struct, frozen=True):
    """The answer of /startup."""

    actors: list[ActorStart]


class VersionObject(msgspec.Struct, frozen=True):
    """The answer of /version."""

    version: str


class ServiceHandlers:
    """Handlers that only read the frontend."""

    def __init__(self, frontend: FrontendAPI, metrics: ServerMetrics) -> None:
        self._frontend = frontend
        self._metrics = metrics
        self._started = int(time.time())

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models"""
        return _json(ModelList([self._card()]))

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}: 404 for a name that is not served."""
        name = request.match_info["model"]
        if name != self._frontend.model_name:
            raise UnknownModel(
                f"the model {name!r} does not exist; this server has {self._frontend.model_name!r}",
                param="model",
                code="model_not_found",
            )
        return _json(self._card())

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: 200 while the engine makes progress or has nothing to do, else 503."""
        health = self._frontend.health()
        status = StatusObject("live" if health.is_live else "not live", "" if health.is_live else health.reason)
        return _json(status, 200 if health.is_live else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """GET /ready: 200 if new requests are served now, else 503 with the reason."""
        health = self._frontend.health()
        status = StatusObject("ready" if health.is_ready else "not ready", health.reason)
        return _json(status, 200 if health.is_ready else 503)

    async def startup(self, request: web.Request) -> web.Response:
        """GET /startup: for each actor what it does now, and the seconds that each phase of its start took."""
        return _json(StartupObject(self._frontend.startup()))

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics: Prometheus text format."""
        return web.Response(
            body=generate_latest(self._metrics.registry),
            headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4},
        )

    async def version(self, request: web.Request) -> web.Response:
        """GET /version"""
        return _json(VersionObject(__version__))

    def _card(self) -> ModelCard:
        return ModelCard(self._frontend.model_name, self._started, self._frontend.max_model_len)


def _json(answer: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(answer),
        content_type="application/json",
    )
