"""Connections of the HTTP server: bounds on their number and on the time of a request's head, errors in one shape.

A request that cannot even be parsed never reaches the app; what answers it is here.
"""

from __future__ import annotations

import asyncio
import resource
from typing import cast

from aiohttp import web

from ..errors import InvalidRequest, Unavailable
from .http_errors import encoded_error, error_response, unexpected
from .request_ids import REQUEST_ID, request_id_header

KEEP_ALIVE_S = 75.0
"""An idle connection is closed; longer than the 60 s after which usual load balancers close theirs."""
MAX_LINE_BYTES = 8190
"""Of a request line, and of a header."""
MAX_HEADERS = 128
SPARE_FDS = 256
"""File descriptors that connections leave to the rest of the process."""


def max_connections() -> int:
    """As many as the limit on open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(soft - SPARE_FDS, soft // 2)


class Connection(web.RequestHandler):
    """One connection. `head_timeout_s`: from its start, or a later request's first byte, to the end of the head."""

    __slots__ = ("_connections", "_head_timeout_s", "_head_timer")

    def __init__(self, connections: Connections, *, loop: asyncio.AbstractEventLoop, head_timeout_s: float) -> None:
        super().__init__(
            connections,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=KEEP_ALIVE_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )
        self._connections = connections
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._connections.is_full:
            cast(asyncio.Transport, transport).write(_REFUSAL)
            self.force_close()
        else:
            self._head_timer = self._loop.call_later(self._head_timeout_s, self._on_head_timeout)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self._stop_head_timer()
        elif data and self._head_timer is None and self._waiter is not None:
            self._head_timer = self._loop.call_later(self._head_timeout_s, self._on_head_timeout)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The OpenAI error body for a request without a readable head; the connection is closed after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun, another cannot follow it")
        if status >= 500 and isinstance(exc, Exception):
            response = error_response(unexpected(exc))
        else:
            reason = " ".join((message or "").split())
            response = error_response(
                InvalidRequest(f"the request is not valid HTTP: {reason}", code="invalid_http", status=status)
            )
        response.headers[REQUEST_ID] = request_id_header(None)
        response.force_close()
        return response

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if not self._messages and self._current_request is None:
            self.force_close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Connections(web.Server):
    """Makes a `Connection` for each client, up to a bound."""

    def __init__(self, app_server: web.Server, *, head_timeout_s: float) -> None:
        """`app_server`: what aiohttp made for the app; the same requests go to the same handler."""
        super().__init__(
            app_server.request_handler,
            request_factory=app_server.request_factory,
            handler_cancellation=app_server.handler_cancellation,
        )
        self._head_timeout_s = head_timeout_s
        self._max_connections = max_connections()

    @property
    def is_full(self) -> bool:
        """Whether the newest connection is one too many."""
        return len(self._connections) > self._max_connections

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, head_timeout_s=self._head_timeout_s)


class ConnectionRunner(web.AppRunner):
    """Runs an app over `Connections`."""

    __slots__ = ("_head_timeout_s",)

    def __init__(self, app: web.Application, *, head_timeout_s: float, shutdown_timeout: float) -> None:
        super().__init__(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=shutdown_timeout,
        )
        self._head_timeout_s = head_timeout_s

    async def _make_server(self) -> web.Server:
        return Connections(await super()._make_server(), head_timeout_s=self._head_timeout_s)


_BODY = encoded_error(Unavailable("the server has no room for another connection", code="too_many_connections"))
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
