"""Sockets that the supervisor binds and hands to the children: HTTP listeners, and ipc links between processes."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError
from ..mailbox import bind_listener
from ..mailbox.messages.control import Link
from ..topology import Topology, expand_actors, kind_of, mailbox_links
from .run_directory import RunDirectory


class Wiring:
    """Owns the listening sockets for the life of the engine; the run directory exists only if a link needs it."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._process_of = {actor: process for process, names in expand_actors(topology).items() for actor in names}
        self._http: socket.socket | None = None
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, str], socket.socket] = {}
        self._num_bound = 0
        self._run_directory: RunDirectory | None = None

    def bind(self) -> str:
        """Bind everything; returns the server's URL. Raises ConfigError when the address cannot be had."""
        server = self._topology.server
        self._http = _listen(server.host, server.port)
        pairs = [(link.sender, link.receiver) for link in mailbox_links(self._topology) if not link.is_local]
        if pairs:
            self._run_directory = RunDirectory()
        for pair in pairs:
            self._bind_link(pair)
        host = f"[{server.host}]" if ":" in server.host else server.host
        return f"http://{host}:{self._http.getsockname()[1]}"

    def _bind_link(self, pair: tuple[str, str]) -> None:
        """A new socket for an ordered pair of actors; its number stands in the path, for nothing ever reconnects."""
        assert self._run_directory is not None
        sender, receiver = pair
        self._num_bound += 1
        path = str(self._run_directory.path / f"{sender}-{receiver}.{self._num_bound}")
        self._listeners[pair] = bind_listener(path)
        self._links[pair] = Link(sender, receiver, path)

    def renew(self, process: str) -> None:
        """A process died: new sockets for every link with an end in it. Raises StartFailed."""
        for link in self.links_of(process):
            pair = (link.sender, link.receiver)
            if pair in self._listeners:  # it is not, if an earlier renewal failed to bind
                self._listeners.pop(pair).close()
            Path(link.path).unlink(missing_ok=True)
            self._bind_link(pair)

    def links_of(self, process: str) -> tuple[Link, ...]:
        """Links with an end in the process."""
        ends = self._process_of
        return tuple(k for k in self._links.values() if process in (ends[k.sender], ends[k.receiver]))

    def links_between(self, process: str, other: str) -> tuple[Link, ...]:
        """Links from one process to the other, both ways."""
        ends = self._process_of
        return tuple(k for k in self._links.values() if {process, other} == {ends[k.sender], ends[k.receiver]})

    def listeners_of(self, process: str, links: Sequence[Link]) -> dict[str, int]:
        """Descriptors by name: a listening socket for each of `links` that the process receives."""
        return {
            f"link.{link.sender}.{link.receiver}": self._listeners[link.sender, link.receiver].fileno()
            for link in links
            if self._process_of[link.receiver] == process
        }

    def descriptors_of(self, process: str) -> dict[str, int]:
        """Descriptors for a process by name: a listener a link that it receives, the HTTP listener a frontend."""
        fds = self.listeners_of(process, self.links_of(process))
        assert self._http is not None
        for actor, owner in self._process_of.items():
            if owner == process and kind_of(actor) == "frontend":
                fds[f"http.{actor}"] = self._http.fileno()
        return fds

    def close(self) -> None:
        for sock in (*self._listeners.values(), *((self._http,) if self._http else ())):
            sock.close()
        self._listeners.clear()
        if self._run_directory is not None:
            self._run_directory.close()


_BACKLOG = 1024
_LISTEN_ADVICE = {
    errno.EADDRINUSE: "choose another with --port, or --port 0 for a free one",
    errno.EADDRNOTAVAIL: "give an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for all networks",
    errno.EACCES: "ports below 1,024 need privileges; choose a higher one with --port",
}


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a name that no name server could be asked for
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise ConfigError(
            f"server.host = {host[:80]!r}: {reason}",
            advice="give an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for all networks",
            phase="network",
        ) from None
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        advice = _LISTEN_ADVICE.get(error.errno or 0, "choose another address or port")
        raise ConfigError(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}", advice=advice, phase="network"
        ) from None
    return sock
