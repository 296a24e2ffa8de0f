"""Runs the app on a socket that somebody else has bound."""

from __future__ import annotations

import socket

from aiohttp import web

from ..actors.frontend_api import FrontendAPI
from ..topology.schema import ServerSection
from .app import build_app
from .connections import ConnectionRunner
from .generation import CLOSE_TIMEOUT_S

LISTEN_BACKLOG = 1024


class HttpServer:
    """A running HTTP server."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner = runner
        self.host, self.port = host, port

    async def close(self) -> None:
        """Stop listening, close idle connections, end what still runs with an error; may be called twice."""
        await self._runner.cleanup()


async def start_server(frontend: FrontendAPI, settings: ServerSection, listening_socket: socket.socket) -> HttpServer:
    """Serve on `listening_socket` (bound, listening or not), which the server owns from now on.

    Raises ConfigError, OSError.
    """
    app = build_app(frontend, settings)
    runner = ConnectionRunner(app, head_timeout_s=settings.client_stall_s, shutdown_timeout=CLOSE_TIMEOUT_S)
    await runner.setup()
    host, port = listening_socket.getsockname()[:2]
    try:
        await web.SockSite(runner, listening_socket, backlog=LISTEN_BACKLOG).start()
    except BaseException:
        await runner.cleanup()
        raise
    return HttpServer(runner, host, port)
