"""The endpoints that only look: models, health, readiness, start, load, metrics, version."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from .. import __version__
from ..actors.frontend_api import ActorStart, FrontendAPI
from ..errors import InvalidRequest, UnknownModel
from ..topology.schema import ServerSection
from .metrics import ServerMetrics

METRICS_COMPAT = ("none", "vllm")


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model as /v1/models lists it. `root` is the model that an adapter changes: here the model itself."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "callboard"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True):
    """The answer of GET /v1/models."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


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


class LoadObject(msgspec.Struct, frozen=True):
    """The answer of /load."""

    server_load: int


class ServiceHandlers:
    """Handlers that only read the frontend."""

    def __init__(self, frontend: FrontendAPI, settings: ServerSection, metrics: ServerMetrics) -> None:
        self._frontend = frontend
        self._metrics_compat = settings.metrics_compat
        self._metrics = metrics
        self._started = int(time.time())

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models: the model that is served."""
        return json_response(ModelList([self._card()]))

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}: the model, or 404 for a name that is not served."""
        name = request.match_info["model"]
        if name != self._frontend.model_name:
            raise UnknownModel(
                f"the model {name!r} does not exist; this server has {self._frontend.model_name!r}",
                param="model",
                code="model_not_found",
            )
        return json_response(self._card())

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: 200 while the engine makes progress or has nothing to do, else 503."""
        health = self._frontend.health()
        status = StatusObject("live" if health.is_live else "not live", "" if health.is_live else health.reason)
        return json_response(status, 200 if health.is_live else 503)

    async def ready(self, request: web.Request) -> web.Response:
        """GET /ready: 200 if new requests are served now, else 503 with the reason."""
        health = self._frontend.health()
        status = StatusObject("ready" if health.is_ready else "not ready", health.reason)
        return json_response(status, 200 if health.is_ready else 503)

    async def startup(self, request: web.Request) -> web.Response:
        """GET /startup: for each actor what it does now, and the seconds that each phase of its start took."""
        return json_response(StartupObject(self._frontend.startup()))

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics: Prometheus text format; `compat=vllm` adds the same numbers under vLLM's names."""
        compat = request.query.get("compat", self._metrics_compat)
        if compat not in METRICS_COMPAT:
            raise InvalidRequest(
                f"compat={compat!r}: the names of {', '.join(METRICS_COMPAT)} can be had", param="compat"
            )
        return web.Response(
            body=self._metrics.exposition(with_vllm_names=compat == "vllm"),
            headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4},
        )

    async def load(self, request: web.Request) -> web.Response:
        """GET /load: how many requests of this frontend have not ended."""
        return json_response(LoadObject(self._frontend.num_live_requests()))

    async def version(self, request: web.Request) -> web.Response:
        """GET /version: of the server."""
        return json_response(VersionObject(__version__))

    def _card(self) -> ModelCard:
        name = self._frontend.model_name
        return ModelCard(id=name, created=self._started, root=name, max_model_len=self._frontend.max_model_len)


def json_response(answer: msgspec.Struct, status: int = 200) -> web.Response:
    """`answer` as the whole body."""
    return web.Response(
        status=status,
        body=msgspec.json.encode(answer),
        content_type="application/json",
    )
