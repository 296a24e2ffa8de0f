"""The supervisor: owns processes, sockets and boards; starts, watches, restarts and stops the children.

It runs in the process that the user started, imports no torch and serves no request. Children die with it
(parent-death signal), and it sees their deaths through pidfds.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from ..errors import ActorFault, EndOfStream, StartFailed, WouldBlock
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
    Shutdown,
    Start,
)
from ..shm_queue import BoardLayout, Phase, ProgressPage, close_board, create_board, create_progress_page
from ..topology import expand_actors, kind_of, plan_boards
from ..topology.schema import ProcessSection
from .children import Child, spawn
from .description import describe_engine
from .faults import Faults
from .launch import Launch
from .loading import LoadingStatistics
from .log import log_event
from .wiring import Wiring

_STOP_TIMEOUT_S = 5.0
"""A child that was told to stop gets so long before it is killed."""
_DRAIN_GRACE_S = 10.0
"""Beyond the drain's own time a process gets so long to say that it has drained: for aborts and for closing streams."""


class Supervisor:
    """`start()`, then `wait()`, which returns the exit status; `request_stop()` drains, a second one stops at once."""

    def __init__(
        self,
        launch: Launch,
        child_command: Sequence[str],
        on_loading: Callable[[int, int], None] | None = None,
    ) -> None:
        """`child_command` starts a child; ` --control-fd N --parent-pid P` is appended.

        `on_loading(done, total)`: bytes of weights.
        """
        self._launch = launch
        self._command = tuple(child_command)
        self._on_loading = on_loading
        self._sections = {p.name: p for p in launch.topology.process}
        self._actors = expand_actors(launch.topology)
        self._all_actors = tuple(a for actors in self._actors.values() for a in actors)
        self._worker_process = self._process_of_kind("worker")
        self._scheduler_process = self._process_of_kind("scheduler")
        self._wiring = Wiring(launch.topology)
        self._page_fd = create_progress_page(len(self._all_actors))
        self._page = ProgressPage(self._page_fd, len(self._all_actors))
        self._description_fd: int | None = None
        self._children: dict[str, Child] = {}
        self._deaths: dict[str, deque[float]] = {name: deque() for name in self._sections}
        self._layouts: tuple[BoardLayout, BoardLayout] | None = None
        self._board_fds: dict[str, int] = {}
        self._epoch = 0
        self._faults = Faults()
        self._stop_requests = 0
        self._is_serving = False
        self._is_draining = False
        self._is_ending = False
        """Children are being ended: a death is no event any more."""
        self._status = 0
        self._drained: set[str] = set()
        self._drain_deadline_s = math.inf
        """On the monotonic clock."""
        self._changed = asyncio.Event()
        self._outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.url = ""

    def _process_of_kind(self, kind: str) -> str:
        return next(name for name, actors in self._actors.items() if any(kind_of(a) == kind for a in actors))

    # Start

    async def start(self) -> None:
        """Start all processes side by side; returns when requests are served.

        Raises StartFailed; then nothing is left running.
        """
        try:
            self.url = self._wiring.bind()
            self._description_fd = describe_engine(self._page_fd, self.url, self._launch)
            self._new_boards()
            for name in self._sections:
                self._spawn(name, incarnation=1)
            await self._faults.run(self._wait_ready())
            self._attach_scheduler()
            self._is_serving = True
        except (OSError, ActorFault) as error:  # no descriptors, memory or space left for sockets and boards
            await self._kill_all()
            raise StartFailed(
                f"{type(error).__name__}: {error}",
                advice="see what of this machine's limits (`ulimit -a`, memory, space in TMPDIR) is used up",
            ) from error
        except BaseException:
            await self._kill_all()
            raise

    def _new_boards(self) -> None:
        """New boards for a new epoch; the old ones' memory goes with its last user."""
        close_board(self._board_fds)
        self._epoch += 1
        self._layouts = plan_boards(self._launch.topology, self._launch.max_model_len, self._epoch)
        self._board_fds = {}
        for layout in self._layouts:
            self._board_fds.update(create_board(layout))

    def _spawn(self, name: str, incarnation: int) -> None:
        launch = self._launch
        actors = self._actors[name]
        assert self._layouts is not None
        for actor in actors:
            self._page.line(self._all_actors.index(actor)).mark(phase=Phase.STARTING)
        fds = {"progress": self._page_fd, **self._wiring.descriptors_of(name)}
        boards: tuple[BoardLayout, ...] = ()
        if name == self._worker_process:
            boards = self._layouts
            fds.update(self._board_fds)
        child = spawn(name, incarnation, self._command)
        self._children[name] = child
        for actor in actors:
            line = self._page.line(self._all_actors.index(actor))
            line.pid, line.incarnation = child.pid, incarnation
        asyncio.get_running_loop().add_reader(child.pidfd, self._on_exit, child)
        child.control.send(
            Start(
                process=name,
                incarnation=incarnation,
                actors=actors,
                all_actors=self._all_actors,
                topology=launch.topology,
                checkpoint=launch.checkpoint,
                shape=launch.shape,
                num_blocks=launch.ledger.num_blocks,
                max_model_len=launch.max_model_len,
                links=self._wiring.links_of(name),
                boards=boards,
                fds=tuple(fds),
            ),
            list(fds.values()),
        )
        self._faults.start(self._follow(child))

    async def _wait_ready(self) -> None:
        worker_line = self._page.line(next(i for i, a in enumerate(self._all_actors) if kind_of(a) == "worker"))
        while True:
            for child in self._children.values():
                if child.failed is not None or child.status is not None:
                    await self._raise_start_failure(child)
            if self._stop_requests:
                raise StartFailed("stopped by a signal before the engine was ready", phase="start")
            if all(child.is_ready for child in self._children.values()):
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(0.1 if self._on_loading else None):
                    await self._changed.wait()
            except TimeoutError:
                if self._on_loading is not None and worker_line.phase is Phase.LOADING:
                    loading = worker_line.read_statistics(LoadingStatistics)
                    self._on_loading(loading.bytes_done, loading.bytes_total)

    async def _raise_start_failure(self, child: Child) -> None:
        await child.wait_exit(_STOP_TIMEOUT_S)
        failed = child.failed
        if failed is not None:
            raise StartFailed(f"{failed.actor}: {failed.cause}", advice=failed.advice, phase=failed.phase)
        lines = (self._page.line(self._all_actors.index(actor)) for actor in self._actors[child.name])
        phases = dict.fromkeys(line.phase.name.lower() for line in lines)
        raise StartFailed(
            f"process {child.name} (pid {child.pid}) ended with {child.describe_status()} "
            f"while it was {', '.join(phases)}",
            advice="look at its last lines above; a SIGKILL that nobody sent is often the kernel out of memory",
        )

    def _attach_scheduler(self) -> None:
        assert self._layouts is not None
        child = self._children[self._scheduler_process]
        child.control.send(Attach(self._layouts, tuple(self._board_fds)), list(self._board_fds.values()))

    # Run

    async def wait(self) -> int:
        """Until the engine has stopped: 0 after a requested stop, 1 after a fault. Nothing is left running."""
        try:
            return await self._faults.run(self._wait_outcome())
        finally:
            await self._kill_all()

    async def _wait_outcome(self) -> int:
        return await self._outcome

    def request_stop(self) -> None:
        """Drain and stop; asked a second time, stop at once. Before the engine is ready: the start fails."""
        self._stop_requests += 1
        self._changed.set()
        if self._is_draining:
            self._send_drain(0.0)
            self._set_drain_deadline(0.0)
        elif self._is_serving:
            self._begin_stop(self._launch.topology.server.drain_timeout_s)

    async def _follow(self, child: Child) -> None:
        while True:
            try:
                message, _ = await child.control.receive()
            except EndOfStream:
                return
            self._hear(child, message)

    def _hear(self, child: Child, message: ChildToSupervisor) -> None:
        match message:
            case Ready():
                child.is_ready = True
                log_event("process.ready", process=child.name, pid=child.pid, **dict(message.phases))
                if message.incarnation > 1:
                    self._attach_scheduler()
            case Failed():
                child.failed = message
            case Parted():
                pass
            case Drained():
                self._drained.add(message.process)
            case _:
                assert_never(message)
        self._changed.set()

    def _on_exit(self, child: Child) -> None:
        try:
            self._bury(child)
        except Exception as error:  # the loop calls this: without a report the error would be logged, and no more
            self._faults.report(error)

    def _bury(self, child: Child) -> None:
        asyncio.get_running_loop().remove_reader(child.pidfd)
        try:
            while True:  # what it said last comes before its death, whichever descriptor was seen first
                message, _ = child.control.receive_nowait()
                self._hear(child, message)
        except (WouldBlock, EndOfStream):
            pass
        child.reap()
        child.close()
        self._changed.set()
        if not self._is_serving or self._is_ending:
            return
        log_event(
            "process.died", process=child.name, pid=child.pid, status=child.describe_status(), cause=child.cause()
        )
        if all(kind_of(actor) == "worker" for actor in self._actors[child.name]):
            self._restart_worker(child)
        else:
            self._fail(f"process {child.name} died ({child.describe_status()})")

    def _restart_worker(self, dead: Child) -> None:
        """The epoch is over: tell the scheduler, which preempts what ran, and start the worker anew with new boards."""
        section: ProcessSection = self._sections[dead.name]
        for actor in self._actors[dead.name]:
            self._page.line(self._all_actors.index(actor)).mark(phase=Phase.STARTING)
        gone = Gone(dead.name, dead.incarnation, self._actors[dead.name], (), ())
        self._children[self._scheduler_process].control.send(gone)
        now = time.monotonic()
        deaths = self._deaths[dead.name]
        deaths.append(now)
        while deaths and deaths[0] < now - section.restart.within_s:
            deaths.popleft()
        if len(deaths) > section.restart.max:
            self._fail(
                f"process {dead.name} died {len(deaths)} times within {section.restart.within_s:g} s "
                f"(restart.max = {section.restart.max}); the last time: {dead.cause()}"
            )
            return
        try:
            self._new_boards()
            self._spawn(dead.name, dead.incarnation + 1)
        except (StartFailed, OSError) as error:
            self._fail(f"process {dead.name} died ({dead.cause()}) and cannot be started again: {error}")

    def _fail(self, reason: str) -> None:
        """The engine cannot go on: live streams end with an error event, then everything stops with status 1."""
        log_event("engine.failed", reason=reason)
        self._status = 1
        for child in self._children.values():
            child.control.send(Ending(reason))
        if not self._is_draining:
            self._begin_stop(0.0)

    # Stop

    def _begin_stop(self, drain_timeout_s: float) -> None:
        """While the engine drains a worker that dies is restarted as before: what runs shall finish."""
        self._is_draining = True
        log_event("engine.draining", timeout_s=drain_timeout_s)
        self._send_drain(drain_timeout_s)
        self._set_drain_deadline(drain_timeout_s)
        self._faults.start(self._stop())

    def _set_drain_deadline(self, drain_timeout_s: float) -> None:
        """Never later than it was."""
        deadline_s = time.monotonic() + drain_timeout_s + _DRAIN_GRACE_S
        self._drain_deadline_s = min(self._drain_deadline_s, deadline_s)
        self._changed.set()

    async def _stop(self) -> None:
        """A process that hangs does not keep the engine: it is killed when its time is over."""
        while waits_for := [n for n, c in self._children.items() if self._has_frontend(c) and n not in self._drained]:
            left_s = self._drain_deadline_s - time.monotonic()
            if left_s <= 0:
                log_event("engine.hangs", processes=",".join(waits_for))
                self._status = 1
                break
            self._changed.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self._is_ending = True
        for child in reversed(list(self._children.values())):
            child.control.send(Shutdown())
            await child.wait_exit(_STOP_TIMEOUT_S)
        log_event("engine.stopped", status=self._status)
        self._outcome.set_result(self._status)

    def _send_drain(self, timeout_s: float) -> None:
        for child in self._children.values():
            if self._has_frontend(child):
                child.control.send(Drain(timeout_s))

    def _has_frontend(self, child: Child) -> bool:
        return child.status is None and any(kind_of(a) == "frontend" for a in self._actors[child.name])

    async def _kill_all(self) -> None:
        self._is_ending = True
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            await child.wait_exit(None)
        await self._faults.wait_cancelled()
        close_board(self._board_fds)
        self._wiring.close()
        os.close(self._page_fd)
        if self._description_fd is not None:
            os.close(self._description_fd)


def watch_signals(supervisor: Supervisor) -> None:
    """SIGTERM and SIGINT ask for a stop; the second one for a stop at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.request_stop)
