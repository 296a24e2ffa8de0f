"""The HTTP server: the OpenAI API, metrics and health over a frontend actor."""

from .app import build_app
from .serve import HttpServer, start_server

__all__ = ["HttpServer", "build_app", "start_server"]
