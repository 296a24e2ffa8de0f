"""The supervisor: starts, watches, restarts and stops the processes of an engine.

It runs in the process that the user started, imports no torch and serves no request. Children die with it
(parent-death signal), and it sees their deaths through pidfds. What a death brings about:

    pidfd ─▶ Gone to the neighbours ─▶ all have parted ─▶ Settled to the frontends, which resume
         └─▶ (backoff) ─▶ the successor starts ─▶ Ready ─▶ the scheduler gets the boards of the new epoch
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable
from typing import assert_never

from ..errors import ActorFault, EndOfStream, StartFailed, WouldBlock
from ..mailbox.messages.control import (
    ChildToSupervisor,
    Drain,
    Drained,
    Ending,
    Failed,
    Parted,
    Ready,
    Settled,
    Shutdown,
)
from ..topology.plan import section_of
from .barriers import Barriers
from .child_starts import ChildStart
from .children import Child
from .crew import Crew
from .faults import Faults
from .launch import Launch
from .loading import LoadingStatistics
from .log import log_event
from .restarts import Restarts

_STOP_TIMEOUT_S = 5.0
"""A child that was told to stop gets so long before it is killed."""
_HURRIED_STOP_TIMEOUT_S = 0.5
"""After a second request to stop."""
_DRAIN_GRACE_S = 10.0
"""Beyond the drain's own time a process gets so long to say that it has drained: for aborts and for closing streams."""


class Supervisor:
    """`start()`, then `wait()`, which returns the exit status; `request_stop()` drains, a second one stops at once."""

    def __init__(
        self,
        launch: Launch,
        child_start: ChildStart,
        on_loading: Callable[[int, int], None] | None = None,
    ) -> None:
        """`on_loading(done, total)`: bytes of weights."""
        self._on_loading = on_loading
        self._topology = launch.topology
        self._drain_timeout_s = launch.topology.server.drain_timeout_s
        self._crew = Crew(launch, child_start, self._on_exit)
        self._restarts = {section.name: Restarts(section.restart) for section in launch.topology.process}
        self._barriers = Barriers()
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

    # Start

    async def start(self) -> None:
        """Start all processes side by side, but for the worker of a GPU, which is started before the others and tells
        them the size of its pool; returns when requests are served.

        Raises StartFailed; then nothing is left running.
        """
        try:
            self.url = self._crew.open()
            for name in (first := self._crew.first_processes):
                self._spawn(name)
            if first:
                await self._faults.run(self._wait_ready())
            for name in self._crew.actors_of:
                if name not in first:
                    self._spawn(name)
            await self._faults.run(self._wait_ready())
            self._crew.attach_scheduler()
            self._is_serving = True
            self._faults.start(self._watch())
        except (OSError, ActorFault) as error:  # no descriptors, memory or space left for sockets and boards
            await self._close()
            raise StartFailed(
                f"{type(error).__name__}: {error}",
                advice="see what of this machine's limits (`ulimit -a`, memory, space in TMPDIR) is used up",
            ) from error
        except BaseException:
            await self._close()
            raise

    def _spawn(self, name: str) -> None:
        self._faults.start(self._follow(self._crew.spawn(name)))

    async def _wait_ready(self) -> None:
        while True:
            for child in self._crew.children.values():
                if child.failed is not None or child.status is not None:
                    await self._raise_start_failure(child)
            if self._stop_requests:
                raise StartFailed("stopped by a signal before the engine was ready", phase="start")
            if all(child.is_ready for child in self._crew.children.values()):
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(0.1 if self._on_loading else None):
                    await self._changed.wait()
            except TimeoutError:
                line = self._crew.loading_line()
                if self._on_loading is not None and line is not None:
                    loading = line.read_statistics(LoadingStatistics)
                    self._on_loading(loading.bytes_done, loading.bytes_total)

    async def _raise_start_failure(self, child: Child) -> None:
        await child.wait_exit(_STOP_TIMEOUT_S)
        failed = child.failed
        if failed is not None:
            raise StartFailed(f"{failed.actor}: {failed.cause}", advice=failed.advice, phase=failed.phase)
        raise StartFailed(
            f"process {child.name} (pid {child.pid}) ended with {child.describe_status()} "
            f"while it was {self._crew.phases_of(child.name)}",
            advice="look at its last lines above; a SIGKILL that nobody sent is often the kernel out of memory",
        )

    # Run

    async def wait(self) -> int:
        """Until the engine has stopped: 0 after a requested stop, 1 after a fault. Nothing is left running."""
        try:
            return await self._faults.run(self._wait_outcome())
        finally:
            await self._close()

    async def _wait_outcome(self) -> int:
        return await self._outcome

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
                self._crew.num_blocks = message.num_blocks or self._crew.num_blocks
                log_event("process.ready", process=child.name, pid=child.pid, **dict(message.phases))
                if self._is_serving:
                    self._crew.attach_scheduler()
                if self._is_draining and self._crew.holds(child.name, "frontend"):
                    child.send(Drain(0.0))
            case Parted():
                self._settle(self._barriers.parted(message.process, message.gone, message.incarnation))
            case Failed():
                child.failed = message
            case Drained():
                self._drained.add(message.process)
            case _:
                assert_never(message)
        self._changed.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._crew.watch_interval_s)
            for child, reason in self._crew.find_hung():
                if child.kill_reason is None:
                    log_event("process.hung", process=child.name, pid=child.pid, reason=reason)
                    child.kill_reason = reason
                    child.kill()

    # Deaths

    def _on_exit(self, child: Child) -> None:
        try:
            self._bury(child)
        except Exception as error:  # the loop calls this: without a report the error would be logged, and no more
            self._faults.report(error)

    def _bury(self, child: Child) -> None:
        try:
            while True:  # what it said last comes before its death, whichever descriptor was seen first
                message, _ = child.control.receive_nowait()
                self._hear(child, message)
        except (WouldBlock, EndOfStream):
            pass
        self._crew.bury(child)
        self._changed.set()
        if not self._is_serving or self._is_ending:
            return
        log_event(
            "process.died", process=child.name, pid=child.pid, status=child.describe_status(), cause=child.cause()
        )
        if self._is_draining and self._crew.holds(child.name, "frontend") and child.name not in self._drained:
            self._status = 1  # with requests that will have no end
        for settled in self._barriers.lost(child.name):
            self._settle(settled)
        if (first := self._crew.end_group(child)) is not None:
            self._replace(first)

    def _replace(self, dead: Child) -> None:
        """Part everybody from the dead incarnation, of all processes that shared its fate, and start the next one,
        unless there were too many. `dead`: the one that ended first."""
        restarts = self._restarts[section_of(self._topology, dead.name).name]
        backoff_s = restarts.record_death(time.monotonic())
        if backoff_s is None:
            self._fail(f"process {dead.name} {restarts.describe()}; the last time: {dead.cause()}")
            return
        settled = self._crew.describe_death(dead)
        try:
            parting = self._crew.part_from(dead)
        except (StartFailed, ActorFault, OSError) as error:
            self._fail(f"process {dead.name} died ({dead.cause()}) and cannot be started again: {error}")
            return
        self._settle(self._barriers.begin(dead.name, dead.incarnation, settled, parting))
        if self._has_use(dead.name):
            self._faults.start(self._respawn(dead, backoff_s))

    def _has_use(self, process: str) -> bool:
        """While the engine drains, what runs shall finish: but nobody waits for a process that only takes requests."""
        return not self._is_draining or bool(self._waits_for())

    async def _respawn(self, dead: Child, backoff_s: float) -> None:
        if backoff_s:
            log_event("process.restarts", process=dead.name, after_s=backoff_s)
            await asyncio.sleep(backoff_s)
        if self._is_ending:
            return
        try:
            for name in self._crew.group_of(dead.name):
                self._spawn(name)
        except (StartFailed, OSError) as error:
            self._fail(f"process {dead.name} died ({dead.cause()}) and cannot be started again: {error}")

    def _settle(self, settled: Settled | None) -> None:
        """All neighbours have parted from a dead incarnation: the frontends resume."""
        if settled is not None:
            for child in self._crew.living("frontend"):
                child.send(settled)

    def _fail(self, reason: str) -> None:
        """The engine cannot go on: live streams end with an error event, then everything stops with status 1."""
        log_event("engine.failed", reason=reason)
        self._status = 1
        self._crew.send_all(Ending(reason))
        if not self._is_draining:
            self._begin_stop(0.0)

    # Stop

    def request_stop(self) -> None:
        """Drain and stop; asked a second time, stop at once. Before the engine is ready: the start fails."""
        self._stop_requests += 1
        self._changed.set()
        if self._is_draining:
            self._send_drain(0.0)
            self._set_drain_deadline(0.0)
        elif self._is_serving:
            self._begin_stop(self._drain_timeout_s)

    def _begin_stop(self, drain_timeout_s: float) -> None:
        """While the engine drains a process that dies is restarted as before: what runs shall finish."""
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

    def _waits_for(self) -> list[str]:
        """Processes whose frontends still hold requests."""
        return [child.name for child in self._crew.living("frontend") if child.name not in self._drained]

    async def _stop(self) -> None:
        """A process that hangs does not keep the engine: it is killed when its time is over."""
        while waits_for := self._waits_for():
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
        for child in reversed(list(self._crew.children.values())):
            child.send(Shutdown())
            await child.wait_exit(_STOP_TIMEOUT_S if self._stop_requests < 2 else _HURRIED_STOP_TIMEOUT_S)
        log_event("engine.stopped", status=self._status)
        self._outcome.set_result(self._status)

    def _send_drain(self, timeout_s: float) -> None:
        for child in self._crew.living("frontend"):
            child.send(Drain(timeout_s))

    async def _close(self) -> None:
        self._is_ending = True
        await self._crew.kill_all()
        await self._faults.wait_cancelled()
        self._crew.close()


def watch_signals(supervisor: Supervisor) -> None:
    """SIGTERM and SIGINT ask for a stop; the second one for a stop at once."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.request_stop)
