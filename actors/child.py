"""A child process: takes `Start` from the supervisor, builds its actors, runs them, and follows control messages."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Protocol, assert_never

import uvloop

from ..errors import CallboardError, EndOfStream, StartFailed
from ..mailbox.messages.control import (
    Attach,
    ChildToSupervisor,
    Drain,
    Drained,
    Ending,
    Failed,
    Gone,
    Parted,
    Ready,
    Settled,
    Shutdown,
    Start,
    SupervisorToChild,
)
from ..topology.schema import ServerSection
from .cast import Cast
from .control import ControlSocket
from .faults import Faults
from .frontend_api import FrontendAPI
from .task_register import tell_leaked_tasks


class HttpServer(Protocol):
    """What `server/` gives back: a running server that can be closed."""

    async def close(self) -> None: ...


ServeHttp = Callable[[FrontendAPI, ServerSection, socket.socket], Awaitable[HttpServer]]

_MAX_CAUSE_CHARS = 4000
"""Of an unforeseen fault: a text of any length must not keep the reason from going out."""


def run_child(control_fd: int, serve_http: ServeHttp | None) -> int:
    """Run this process until it is shut down; returns its exit status. `serve_http`: for a process with a frontend."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal or service manager may signal the whole group:
        signal.signal(number, signal.SIG_IGN)  # the supervisor decides, and ends its children itself
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # prompts come one at a time: no pool of threads for them
    gc.disable()  # until all is there that will stay: a vocabulary alone is looked through dozens of times
    os.set_inheritable(control_fd, False)
    ours = socket.socket(fileno=control_fd)
    if not ours.recv(1, socket.MSG_PEEK):
        return 0  # the start has failed before this process was needed
    control: ControlSocket[ChildToSupervisor, SupervisorToChild] = ControlSocket(ours, SupervisorToChild)
    return uvloop.run(_Child(control, serve_http).run())


class _Child:
    def __init__(
        self, control: ControlSocket[ChildToSupervisor, SupervisorToChild], serve_http: ServeHttp | None
    ) -> None:
        self._control = control
        self._serve_http = serve_http
        self._servers: list[HttpServer] = []
        self._is_closing_servers = asyncio.Lock()
        self._faults = Faults()

    async def run(self) -> int:
        start, fds = await self._control.receive()
        assert isinstance(start, Start), "the first control message is Start"
        phase, actor = "start", start.process
        cast = Cast(start, dict(zip(start.fds, fds, strict=True)))
        try:
            started_ns = time.monotonic_ns()
            await cast.start()
            await self._start_servers(cast, start)
            gc.collect()
            gc.freeze()
            gc.enable()
            seconds = (time.monotonic_ns() - started_ns) / 1e9
            phases = (("start", seconds),)
            self._control.send(Ready(start.process, start.incarnation, phases, cast.num_measured_blocks))
            phase = "running"
            await self._faults.run(self._serve(cast))
        except StartFailed as error:
            self._control.send(Failed(start.process, actor, error.phase, error.cause, error.advice))
            return 1
        except Exception as error:
            if not isinstance(error, CallboardError):
                traceback.print_exc(file=sys.stderr)
            cause = f"{type(error).__name__}: {error}"[:_MAX_CAUSE_CHARS]
            self._control.send(Failed(start.process, cast.failed_actor or actor, phase, cause, ""))
            return 1
        finally:
            self._faults.cancel()
            cast.close()
        return 0

    async def _start_servers(self, cast: Cast, start: Start) -> None:
        for frontend in cast.frontends:
            assert self._serve_http is not None, "a process with a frontend is started with an HTTP server"
            sock = socket.socket(fileno=cast.take_fd(f"http.{frontend.name}"))
            self._servers.append(await self._serve_http(frontend, start.topology.server, sock))

    async def _serve(self, cast: Cast) -> None:
        """Run the actors and follow the supervisor; returns after Shutdown, raises what an actor died of."""
        self._faults.start(_beat(cast))
        actors = asyncio.ensure_future(cast.run())
        commands = asyncio.ensure_future(self._follow(cast))
        done, _ = await asyncio.wait((actors, commands), return_when=asyncio.FIRST_COMPLETED)
        for task in (actors, commands):
            if task not in done:
                task.cancel()
        if actors in done and (error := actors.exception()) is not None:
            cast.fail_streams(f"{cast.failed_actor} failed")  # or the server would wait for streams that never end
            await self._close_servers()
            raise error
        await self._close_servers()
        for task in done:
            task.result()

    async def _close_servers(self) -> None:
        async with self._is_closing_servers:
            for server in self._servers:
                await server.close()
            self._servers.clear()

    async def _follow(self, cast: Cast) -> None:
        while True:
            try:
                message, fds = await self._control.receive()
            except EndOfStream:
                return  # the supervisor is gone; the parent-death signal is on its way
            match message:
                case Attach():
                    cast.attach(message, dict(zip(message.fds, fds, strict=True)))
                case Gone():
                    cast.gone(message, dict(zip(message.fds, fds, strict=True)))
                    self._control.send(Parted(cast.process, message.process, message.incarnation))
                case Ending():
                    cast.fail_streams(message.reason)
                case Settled():
                    cast.settled(message)
                case Drain():
                    self._faults.start(self._drain(cast, message))
                case Shutdown():
                    return
                case Start():
                    raise AssertionError("a second Start")
                case _:
                    assert_never(message)

    async def _drain(self, cast: Cast, drain: Drain) -> None:
        await asyncio.gather(*(frontend.drain(drain.timeout_s) for frontend in cast.frontends))
        await self._close_servers()
        self._control.send(Drained(cast.process))


_BEAT_INTERVAL_S = 1.0
"""A process that idles wakes up so often, to show that it still can."""


async def _beat(cast: Cast) -> None:
    while True:
        cast.beat()
        tell_leaked_tasks()
        await asyncio.sleep(min(_BEAT_INTERVAL_S, cast.actor_deadline_s / 8))
