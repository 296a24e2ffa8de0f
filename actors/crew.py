"""The processes of one engine and everything that they share: sockets, boards, the progress page.

It does what the supervisor decides: spawn a process, part its neighbours from a dead one, hand out new boards.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial

from ..mailbox.messages.control import Gone, Settled, Start, SupervisorToChild
from ..shm_queue import Phase, ProgressLine, ProgressPage, create_mask_region, create_progress_page
from ..topology import expand_actors, kind_of, mask_layout
from ..topology.device import has_gpu
from ..topology.plan import processes_of, rank_of, worker_process
from .between_ranks import BetweenRanks
from .child_starts import ChildStart
from .children import Child, spawn
from .description import describe_engine
from .epoch import EpochBoards
from .launch import Launch
from .watchdog import Watchdog
from .wiring import Wiring


class Crew:
    """`on_exit` is called when a child has ended."""

    def __init__(self, launch: Launch, start: ChildStart, on_exit: Callable[[Child], None]) -> None:
        self._launch = launch
        self._start = start
        self._on_exit = on_exit
        self.actors_of = expand_actors(launch.topology)
        """Process -> its actors."""
        self.all_actors = tuple(actor for actors in self.actors_of.values() for actor in actors)
        self.num_blocks = 0 if has_gpu(launch.topology) else launch.ledger.num_blocks
        """Of the KV pool; 0 until the worker of a GPU has measured it."""
        self.children: dict[str, Child] = {}
        """By process; the last incarnation, dead or alive."""
        self._incarnations = dict.fromkeys(self.actors_of, 0)
        self._wiring = Wiring(launch.topology)
        self._boards = EpochBoards(launch.topology, launch.max_model_len)
        self._watchdog = Watchdog(launch.topology.supervision)
        self._page_fd = create_progress_page(len(self.all_actors))
        self._page = ProgressPage(self._page_fd, len(self.all_actors))
        self._description_fd: int | None = None
        self._mask_fd: int | None = None
        self._between_ranks = BetweenRanks(launch.topology, launch.shape)
        self._scheduler_process = self.process_of("scheduler")
        self._rank_processes = processes_of(worker_process(launch.topology))
        """Of the worker, in the order of its ranks."""
        self._first_deaths: dict[tuple[str, ...], Child] = {}
        """Of groups whose last process has not ended yet."""

    def process_of(self, kind: str) -> str:
        """The process that holds the actors of `kind`; of the first, if there are several."""
        return next(name for name, actors in self.actors_of.items() if any(kind_of(a) == kind for a in actors))

    @property
    def first_processes(self) -> list[str]:
        """Those that have to be ready before the others can start: a worker that measures the pool."""
        return [] if self.num_blocks else list(self._rank_processes)

    def group_of(self, process: str) -> tuple[str, ...]:
        """The processes that share its fate: the ranks of a worker; of any other, it alone."""
        return self._rank_processes if process in self._rank_processes else (process,)

    def holds(self, process: str, kind: str) -> bool:
        return any(kind_of(actor) == kind for actor in self.actors_of[process])

    def line(self, actor: str) -> ProgressLine:
        return self._page.line(self.all_actors.index(actor))

    def living(self, kind: str | None = None) -> list[Child]:
        """Processes that run, those with an actor of `kind` only if one is given."""
        return [c for c in self.children.values() if c.status is None and (kind is None or self.holds(c.name, kind))]

    # Start

    def open(self) -> str:
        """Bind the sockets, make the boards; returns the server's URL. Raises ConfigError, OSError, ActorFault."""
        url = self._wiring.bind()
        self._description_fd = describe_engine(self._page_fd, url, self._launch)
        self._boards.renew()
        self._between_ranks.renew()
        if any(kind_of(actor) == "grammar" for actor in self.all_actors):
            self._mask_fd = create_mask_region(mask_layout(self._launch.topology, self._launch.shape))
        return url

    def spawn(self, name: str) -> Child:
        """Start the next incarnation of a process. Raises StartFailed, OSError."""
        launch = self._launch
        actors = self.actors_of[name]
        for actor in actors:
            self.line(actor).begin()
        fds = {"progress": self._page_fd, **self._wiring.descriptors_of(name)}
        has_worker = self.holds(name, "worker")
        if has_worker:
            rank = self._rank_processes.index(name)
            fds |= self._boards.fds_of_rank(rank) | self._between_ranks.fds_of_rank(rank)
        if self._mask_fd is not None and (has_worker or self.holds(name, "grammar")):
            fds["masks"] = self._mask_fd
        self._incarnations[name] += 1
        child = spawn(name, self._incarnations[name], self._start)
        self.children[name] = child
        asyncio.get_running_loop().add_reader(child.pidfd, self._on_exit, child)
        child.send(
            Start(
                process=name,
                incarnation=child.incarnation,
                actors=actors,
                all_actors=self.all_actors,
                topology=launch.topology,
                checkpoint=launch.checkpoint,
                shape=launch.shape,
                num_blocks=self.num_blocks,
                max_model_len=launch.max_model_len,
                links=self._wiring.links_of(name),
                boards=self._boards.layouts if has_worker else (),
                fds=tuple(fds),
                ranks=self._between_ranks.region if has_worker else None,
                stage_boards=self._between_ranks.boards if has_worker else (),
                draft=launch.draft,
            ),
            list(fds.values()),
        )
        return child

    def attach_scheduler(self) -> None:
        """Give the scheduler the boards of this epoch, once both it and all ranks of the worker are ready."""
        scheduler, ranks = self.children[self._scheduler_process], [self.children[r] for r in self._rank_processes]
        # One that died stands here until its successor starts.
        are_ranks_up = all(rank.is_ready and rank.status is None for rank in ranks)
        if scheduler.is_ready and are_ranks_up and scheduler.epoch != self._boards.epoch:
            scheduler.epoch = self._boards.epoch
            scheduler.send(*self._boards.attach_message())

    # Deaths

    def bury(self, child: Child) -> None:
        """Its pidfd said that it has ended."""
        asyncio.get_running_loop().remove_reader(child.pidfd)
        child.reap()
        child.close()

    def end_group(self, dead: Child) -> Child | None:
        """A process has ended: so do those that share its fate. Returns the one that ended first, when all have."""
        group = self.group_of(dead.name)
        first = self._first_deaths.setdefault(group, dead)
        living = [child for name in group if (child := self.children[name]).status is None]
        for child in living:
            child.kill_reason = child.kill_reason or f"the death of {first.name}"
            child.kill()
        return None if living else self._first_deaths.pop(group)

    def _actors_of_group(self, process: str) -> tuple[str, ...]:
        return tuple(actor for name in self.group_of(process) for actor in self.actors_of[name])

    def describe_death(self, dead: Child) -> Settled:
        """For the frontends, once all have parted; to be asked before `part_from` clears the progress lines."""
        actors = self._actors_of_group(dead.name)
        marks = (self.line(actor).working_on for actor in actors)
        return Settled(actors, has_served=dead.is_ready, suspects=tuple(mark for mark in marks if mark))

    def part_from(self, dead: Child) -> set[str]:
        """New links and boards in place of those that `dead` and its group used; its neighbours are told to part from
        all of them.

        Returns the processes that will answer `Parted`. Raises StartFailed, OSError, ActorFault.
        """
        actors = self._actors_of_group(dead.name)
        for actor in actors:
            self.line(actor).begin()
            self._watchdog.forget(actor)
        self._renew_boards(dead)
        self._wiring.renew(dead.name)
        parting: set[str] = set()
        for child in self.living():
            links = self._wiring.links_between(dead.name, child.name)
            if links or (dead.name in self._rank_processes and child.name == self._scheduler_process):
                fds = self._wiring.listeners_of(child.name, links)
                gone = Gone(dead.name, dead.incarnation, actors, links, tuple(fds))
                child.send(gone, list(fds.values()))
                parting.add(child.name)
        return parting

    def _renew_boards(self, dead: Child) -> None:
        """A death of either side ends the epoch; a worker that lives keeps its weights and takes the new boards."""
        lost_scheduler, lost_worker = dead.name == self._scheduler_process, dead.name in self._rank_processes
        if not lost_scheduler and not lost_worker:
            return
        if lost_scheduler:
            self._boards.seal_call_board()
        self._boards.renew()
        if lost_worker:
            self._between_ranks.renew()
            return
        for rank, name in enumerate(self._rank_processes):
            if (child := self.children[name]).status is None:
                child.send(*self._boards.attach_message(rank))

    def find_hung(self) -> list[tuple[Child, str]]:
        """Processes that live and do not move, with the reason; to be asked every `watch_interval_s`."""
        self._watchdog.tick(time.monotonic_ns())
        hung: list[tuple[Child, str]] = []
        for child in self.living():
            for actor in self.actors_of[child.name]:
                reason = self._watchdog.check(
                    actor,
                    self.line(actor),
                    partial(self._boards.has_unread_plan, rank_of(actor)) if kind_of(actor) == "worker" else None,
                )
                if reason is not None:
                    hung.append((child, reason))
                    break
        return hung

    @property
    def watch_interval_s(self) -> float:
        return self._watchdog.interval_s

    # End

    def send_all(self, message: SupervisorToChild) -> None:
        for child in self.children.values():
            child.send(message)

    def phases_of(self, process: str) -> str:
        """What its actors said last that they were doing: `loading`."""
        phases: dict[str, None] = dict.fromkeys(self.line(a).phase.name.lower() for a in self.actors_of[process])
        return ", ".join(phases)

    def loading_line(self) -> ProgressLine | None:
        """The progress line of a worker that loads its weights now."""
        for actor in self.all_actors:
            if kind_of(actor) == "worker" and self.line(actor).phase is Phase.LOADING:
                return self.line(actor)
        return None

    async def kill_all(self) -> None:
        """End every process that still runs."""
        for child in self.children.values():
            child.kill()
        for child in self.children.values():
            await child.wait_exit(None)

    def close(self) -> None:
        self._boards.close()
        self._wiring.close()
        os.close(self._page_fd)
        self._between_ranks.close()
        for fd in (self._description_fd, self._mask_fd):
            if fd is not None:
                os.close(fd)
