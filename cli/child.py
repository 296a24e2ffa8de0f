"""Entry point of every child process: hands the HTTP server to processes that have a frontend."""

from __future__ import annotations

import argparse
import socket
import sys

from ..actors.child import HttpServer, run_child
from ..actors.frontend_api import FrontendAPI
from ..topology.schema import ServerSection


async def serve_http(frontend: FrontendAPI, settings: ServerSection, sock: socket.socket) -> HttpServer:
    """Imported on first use: a process without a frontend loads no HTTP server."""
    from ..server import start_server

    return await start_server(frontend, settings, sock)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    args = parser.parse_args()
    sys.exit(run_child(args.control_fd, args.parent_pid, serve_http))


if __name__ == "__main__":
    main()
