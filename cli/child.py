"""Entry point of every child process: hands the HTTP server to processes that have a frontend."""

from __future__ import annotations

import argparse
import socket
import sys
from typing import TYPE_CHECKING

from ..actors.parent_death import die_with_parent

if TYPE_CHECKING:
    from ..actors.child import HttpServer
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
    die_with_parent(args.parent_pid)  # before what takes time to import: its supervisor may be killed meanwhile
    from ..actors.child import run_child

    sys.exit(run_child(args.control_fd, serve_http))


if __name__ == "__main__":
    main()
