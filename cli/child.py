"""What runs in every child process: hands the HTTP server to processes that have a frontend.

`python -P -m callboard.cli.child --control-fd N --parent-pid P` is a child that was started by a command.
"""

from __future__ import annotations

import argparse
import socket
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from ..actors.parent_death import die_with_parent

if TYPE_CHECKING:
    from ..actors.child import HttpServer
    from ..actors.forks import ForkStart
    from ..actors.frontend_api import FrontendAPI
    from ..topology import Topology
    from ..topology.schema import ServerSection


async def serve_http(frontend: FrontendAPI, settings: ServerSection, sock: socket.socket) -> HttpServer:
    """Imported on first use: a process without a frontend loads no HTTP server."""
    from ..server import start_server

    return await start_server(frontend, settings, sock)


def child_start(topology: Topology) -> ForkStart:
    """Forks the children of an engine, which import what their actors are made of before they are told anything."""
    from ..actors.child import run_child
    from ..actors.forks import ForkStart
    from ..topology import expand_actors, kind_of

    kinds = {name: {kind_of(actor) for actor in actors} for name, actors in expand_actors(topology).items()}

    def run(name: str, control_fd: int) -> int:
        for kind in kinds[name]:
            _import_parts(kind)
        return run_child(control_fd, serve_http)

    return ForkStart(run)


def start_early(children: ForkStart, topology: Topology, *, has_worker: bool) -> None:
    """Processes with a worker, or those without. These have much to import: they are forked before the model is known.
    A worker is forked after that: what the supervisor has read of the model's files the worker has then read, too."""
    from ..topology import expand_actors, kind_of

    for name, actors in expand_actors(topology).items():
        if any(kind_of(actor) == "worker" for actor in actors) == has_worker:
            children.start_early(name)


def _import_parts(kind: str) -> None:
    """What a kind of actor is made of; a model's part comes when the device and the model are known."""
    match kind:
        case "frontend":
            _import_aiohttp()
            import_module("..actors.frontend", __package__)
            import_module("..server.serve", __package__)
        case "tokenizer":
            import_module("..actors.tokenizer", __package__)
            import_module("..text.load", __package__)
        case "scheduler":
            import_module("..actors.scheduler", __package__)
            import_module("..scheduling.scheduler", __package__)
        case "worker":
            import_module("..actors.worker", __package__)
            import_module("..actors.runners", __package__)


def _import_aiohttp() -> None:
    """As where Python has no TLS: no process here speaks it, and its client would read the machine's certificates at
    once, which takes longer than all else of it."""
    import_module("urllib.request")  # it is told nothing: others want it whole
    tls = sys.modules.pop("ssl", None)
    sys.modules["ssl"] = None  # type: ignore[assignment]  # how an import is told that there is no such module
    try:
        import_module("aiohttp.web")
    finally:
        del sys.modules["ssl"]
        if tls is not None:
            sys.modules["ssl"] = tls


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
