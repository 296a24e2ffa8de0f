"""The actors of one process: builds each from its own part of `Start`, wires their mailboxes, runs them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import StartFailed
from ..mailbox import Inbox, LocalOutbox, Outbox, ZmqOutbox
from ..mailbox.messages.control import Attach, Gone, Settled, Start
from ..mailbox.messages.grammar import ToGrammar
from ..mailbox.messages.requests import TokenizerToFrontend
from ..scheduling.limits import SchedulerLimits
from ..scheduling.statistics import SchedulerStatistics
from ..shm_queue import (
    START_PHASES,
    BoardLayout,
    BoardReader,
    BoardWriter,
    MaskRegion,
    Phase,
    ProgressPage,
    close_board,
)
from ..topology import Topology, kind_of, mask_layout, max_plan_tokens
from ..topology.boards import stage_boards_of
from ..topology.plan import has_constrained_drafts, output_rank_of, rank_of, section_of
from ..topology.schema import ProcessSection
from .base import Actor, run_actor
from .faults import Faults
from .frontend_api import ActorStart, Health
from .grammar_statistics import GrammarStatistics
from .sender import Sender

if TYPE_CHECKING:
    from ..scheduling.scheduler import Scheduler
    from .frontend import Frontend
    from .grammar import GrammarActor
    from .runners import StageEnds
    from .scheduler import SchedulerActor
    from .scheduler_journal import SchedulerJournal
    from .tokenizer import TokenizerActor
    from .worker import WorkerActor

M = TypeVar("M")

_INBOX_MESSAGES = 1024
_MIN_MAX_BYTES = 64 * 1024 * 1024
"""Largest mailbox message, at least: deltas carry rows of many requests, whatever the limit on one request's body."""
_NOT_LIVE_AFTER = 0.5
"""Share of `step_deadline_s` (or `actor_deadline_s`) without progress after which `/health` says so."""


class Cast:
    """Builds in dependency order: mailboxes, then actors; vocabulary and model load side by side.

    A kind of actor is imported where there is one.
    """

    def __init__(self, start: Start, fds: dict[str, int]) -> None:
        self.process = start.process
        self.actor_deadline_s = start.topology.supervision.actor_deadline_s
        self.frontends: list[Frontend] = []
        self.failed_actor: str | None = None
        self.num_measured_blocks = 0
        """Of the worker's pool, if it has measured its device; 0: not."""
        self._start = start
        self._fds = fds
        self._max_bytes = max(_MIN_MAX_BYTES, 4 * start.topology.server.max_request_bytes)
        page_fd = self.take_fd("progress")
        self._page = ProgressPage(page_fd, len(start.all_actors))
        os.close(page_fd)
        for actor in start.actors:
            line = self._page.line(start.all_actors.index(actor))
            line.pid, line.incarnation = os.getpid(), start.incarnation
        self._masks = self._map_masks()
        self._scheduler: SchedulerActor | None = None
        self._tokenizers: list[TokenizerActor] = []
        self._grammar: GrammarActor | None = None
        self._worker: WorkerActor | None = None
        self._worker_stop_fd = -1
        self._inboxes: dict[str, Inbox[Any]] = {}
        self._sender_of: dict[tuple[str, str], Sender[Any]] = {}
        """(sender, receiver) -> what the sending actor holds."""
        links = {(link.sender, link.receiver) for link in start.links}
        self._partners = links | {(receiver, sender) for sender, receiver in links}
        """Pairs of actors in different processes with a mailbox between, both ways round."""

    def take_fd(self, name: str) -> int:
        """Hand out a descriptor of `Start`; the caller owns it from now on."""
        return self._fds.pop(name)

    def _map_masks(self) -> MaskRegion | None:
        """If a worker or the grammar actor is here, and there is one."""
        if "masks" not in self._fds:
            return None
        fd = self.take_fd("masks")
        masks = MaskRegion(mask_layout(self._start.topology, self._start.shape), fd)
        os.close(fd)
        return masks

    # Start

    async def start(self) -> None:
        """Build all actors; returns when each can serve. Raises StartFailed with the phase and the cause."""
        self._make_inboxes()
        local = {
            kind: [a for a in self._start.actors if kind_of(a) == kind] for kind in map(kind_of, self._start.actors)
        }
        for name in local.get("scheduler", ()):
            self._make_scheduler(name)
        for name in local.get("grammar", ()):
            self._make_grammar(name)
        await asyncio.gather(
            self._make_tokenizers(local.get("tokenizer", [])),
            *(self._make_worker(name) for name in local.get("worker", ())),
        )
        for name in local.get("frontend", ()):
            self._make_frontend(name)

    def _make_inboxes(self) -> None:
        """One inbox an actor that takes messages, with a socket for each sender in another process."""
        for name in self._start.actors:
            match kind_of(name):
                case "frontend":
                    self._inboxes[name] = Inbox(TokenizerToFrontend, _INBOX_MESSAGES, self._max_bytes)
                case "tokenizer":
                    from .tokenizer import TokenizerInbound

                    self._inboxes[name] = Inbox(TokenizerInbound, _INBOX_MESSAGES, self._max_bytes)
                case "scheduler":
                    from .scheduler import ToScheduler

                    self._inboxes[name] = Inbox(ToScheduler, _INBOX_MESSAGES, self._max_bytes)
                case "grammar":
                    self._inboxes[name] = Inbox(ToGrammar, _INBOX_MESSAGES, self._max_bytes)
        for link in self._start.links:
            if link.receiver in self._inboxes:
                fd = self.take_fd(f"link.{link.sender}.{link.receiver}")
                self._inboxes[link.receiver].attach(link.sender, link.path, fd)

    def _senders(self, sender: str, receiver_kind: str, faults: Faults) -> dict[str, Sender[Any]]:
        """Senders of an actor to all actors of a kind: by reference inside the process, through ZMQ otherwise."""
        senders: dict[str, Sender[Any]] = {}
        for receiver in self._start.all_actors:
            if kind_of(receiver) == receiver_kind:
                outbox: Outbox[Any]
                if receiver in self._inboxes:
                    outbox = LocalOutbox(self._inboxes[receiver], sender)
                else:
                    path = next(k.path for k in self._start.links if (k.sender, k.receiver) == (sender, receiver))
                    outbox = ZmqOutbox(path, _INBOX_MESSAGES, self._max_bytes)
                senders[receiver] = self._sender_of[sender, receiver] = Sender(outbox, faults)
        return senders

    def _make_scheduler(self, name: str) -> None:
        from ..scheduling.scheduler import Scheduler
        from .scheduler import SchedulerActor

        topology = self._start.topology
        section, kv_cache = topology.scheduler, topology.kv_cache
        limits = SchedulerLimits(
            max_num_seqs=section.max_num_seqs,
            max_num_batched_tokens=section.max_num_batched_tokens,
            long_prefill_token_threshold=section.long_prefill_token_threshold,
            pipeline_depth=section.pipeline_depth,
            watermark=section.watermark,
            max_queued_requests=section.max_queued_requests,
            max_queued_tokens=section.max_queued_tokens,
            num_blocks=self._start.num_blocks,
            block_size=kv_cache.block_size,
            prefix_caching=kv_cache.prefix_caching,
            max_model_len=self._start.max_model_len,
            max_plan_tokens=max_plan_tokens(topology, self._start.max_model_len),
            resume_grace_s=topology.supervision.resume_grace_s,
            policy=section.policy,
            preemption=section.preemption,
            admission=section.admission,
            fair_aging_tokens_per_s=section.fair_aging_tokens_per_s,
            fair_aging_max_tokens=section.fair_aging_max_tokens,
            max_drafts=0 if topology.speculative is None else topology.speculative.max_tokens,
            has_adaptive_drafts=topology.speculative is not None and topology.speculative.adaptive,
            max_ledgers=section.max_ledgers,
            has_constrained_drafts=has_constrained_drafts(topology),
        )
        line = self._page.line(self._start.all_actors.index(name))
        inbox = self._inboxes[name]
        faults = Faults(name)
        tokenizers = self._senders(name, "tokenizer", faults)
        grammars = self._senders(name, "grammar", faults)
        scheduler = Scheduler(limits)
        journal = self._make_journal(limits, scheduler)
        self._scheduler = SchedulerActor(name, inbox, tokenizers, scheduler, line, faults, journal, grammars)

    def _make_grammar(self, name: str) -> None:
        from .grammar_start import make_grammar

        assert self._masks is not None, "a process with a grammar actor gets the masks"
        faults = Faults(name)
        self._grammar = make_grammar(
            name,
            self._start,
            self._inboxes[name],
            self._senders(name, "scheduler", faults),
            self._masks,
            self._page.line(self._start.all_actors.index(name)),
            faults,
        )

    def _make_journal(self, limits: SchedulerLimits, scheduler: Scheduler) -> SchedulerJournal | None:
        """If the topology wants one. If it cannot be written only the first start fails: later ones have requests."""
        section = self._start.topology.journal
        if section is None:
            return None
        from ..journal.writer import JournalWriter
        from .scheduler_journal import SchedulerJournal

        stem = Path(section.path).expanduser()
        writer = JournalWriter(stem, section.max_bytes, limits, time.monotonic_ns(), scheduler.snapshot)
        if writer.failure is not None and self._start.incarnation <= 1:
            advice = "correct [journal] path, or leave the section out"
            raise StartFailed(f"the journal {stem} cannot be written: {writer.failure}", advice=advice, phase="journal")
        return SchedulerJournal(writer)

    async def _make_tokenizers(self, names: list[str]) -> None:
        if not names:
            return
        from ..text import load_tokenizer
        from .tokenizer import TokenizerActor

        start = self._start
        tokenizer = await asyncio.to_thread(
            load_tokenizer, start.checkpoint, chat_template_path=start.topology.model.chat_template
        )
        eos_token_ids = tuple(sorted({*start.shape.eos_token_ids, *tokenizer.eos_token_ids}))
        for name in names:
            faults = Faults(name)
            line = self._page.line(start.all_actors.index(name))
            actor = TokenizerActor(
                name,
                self._inboxes[name],
                tokenizer,
                self._senders(name, "scheduler", faults),
                self._senders(name, "frontend", faults),
                self._senders(name, "grammar", faults),
                line,
                faults,
                max_model_len=start.max_model_len,
                max_encodings=_max_live_requests(start.topology),
                eos_token_ids=eos_token_ids,
            )
            self._tokenizers.append(actor)
            line.mark(phase=Phase.SERVING)

    async def _make_worker(self, name: str) -> None:
        from ..execution.token_masks import UnreadMasks
        from .runners import RankPlace, make_runner
        from .worker import WorkerActor

        start = self._start
        section, rank = section_of(start.topology, start.process), rank_of(name)
        is_unread = self._masks is not None and rank != output_rank_of(section)
        masks = UnreadMasks() if is_unread else self._masks
        place = None
        if start.ranks is not None:
            place = RankPlace(rank % section.tensor_parallel, start.ranks, self.take_fd("ranks"))
        stage = self._stage_ends(section, rank) if start.stage_boards else None
        line = self._page.line(start.all_actors.index(name))
        stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        worker = WorkerActor(
            name,
            lambda: make_runner(start, section, line, self._note_measured, masks, place, stage),
            line,
            stop_fd,
            pipeline_depth=start.topology.scheduler.pipeline_depth,
        )
        self._worker, self._worker_stop_fd = worker, stop_fd
        call, result = start.boards
        fd_names = (*call.reader_fd_names(rank), *(result.fd_names() if rank == output_rank_of(section) else ()))
        self._attach_worker(worker, start.boards, {fd_name: self.take_fd(fd_name) for fd_name in fd_names})
        await worker.start()

    def _stage_ends(self, section: ProcessSection, rank: int) -> StageEnds:
        from .runners import StageEnds

        own = stage_boards_of(self._start.stage_boards, section, rank)
        layouts = [own.hidden_in, own.hidden_out, own.tokens_in, own.tokens_out]
        names = dict.fromkeys(name for layout in layouts if layout is not None for name in layout.fd_names())
        fds = {name: self.take_fd(name) for name in names}
        ends = StageEnds(
            rank // section.tensor_parallel,
            section.pipeline_parallel,
            None if own.hidden_in is None else BoardReader(own.hidden_in, fds, 0),
            None if own.hidden_out is None else BoardWriter(own.hidden_out, fds),
            None if own.tokens_in is None else BoardReader(own.tokens_in, fds, rank),
            None if own.tokens_out is None else BoardWriter(own.tokens_out, fds),
        )
        close_board(fds)
        return ends

    def _note_measured(self, num_blocks: int) -> None:
        self.num_measured_blocks = num_blocks

    def _attach_worker(self, worker: WorkerActor, boards: tuple[BoardLayout, ...], fds: dict[str, int]) -> None:
        from .worker import EpochEnds

        call_layout, result_layout = boards
        rank, section = rank_of(worker.name), section_of(self._start.topology, self._start.process)
        call_board = BoardReader(call_layout, fds, rank, wake_fd=self._worker_stop_fd)
        result_board = BoardWriter(result_layout, fds) if rank == output_rank_of(section) else None
        worker.attach(EpochEnds(call_layout.epoch, call_board, result_board))
        close_board(fds)

    def _make_frontend(self, name: str) -> None:
        from .frontend import Frontend

        start = self._start
        faults = Faults(name)
        frontend = Frontend(
            name,
            self._inboxes[name],
            self._senders(name, "tokenizer", faults),
            faults,
            model_name=start.topology.model.served_name or start.checkpoint.name,
            max_model_len=start.max_model_len,
            vocab_size=start.shape.vocab_size,
            max_live_requests=_max_live_requests(start.topology),
            scheduler=next(a for a in start.all_actors if kind_of(a) == "scheduler"),
            read_health=self._read_health,
            read_statistics=self._statistics_reader(),
            read_grammar_statistics=self._read_grammar_statistics,
            read_startup=self._read_startup,
            has_priorities=start.topology.scheduler.policy == "priority",
            kv_cache=start.topology.kv_cache,
            takes_sessions=sum(kind_of(a) == "frontend" for a in start.all_actors) == 1,
            tool_call_parser=start.topology.model.tool_call_parser,
            reasoning_parser=start.topology.model.reasoning_parser,
            server=start.topology.server,
        )
        self.frontends.append(frontend)
        self._page.line(start.all_actors.index(name)).mark(phase=Phase.SERVING)

    # The progress page

    def _statistics_reader(self) -> Callable[[], SchedulerStatistics]:
        scheduler = next(i for i, a in enumerate(self._start.all_actors) if kind_of(a) == "scheduler")
        line = self._page.line(scheduler)
        return lambda: line.read_statistics(SchedulerStatistics)

    def _read_grammar_statistics(self) -> GrammarStatistics | None:
        grammars = [index for index, actor in enumerate(self._start.all_actors) if kind_of(actor) == "grammar"]
        return self._page.line(grammars[0]).read_statistics(GrammarStatistics) if grammars else None

    def _read_health(self) -> Health:
        supervision = self._start.topology.supervision
        for index, actor in enumerate(self._start.all_actors):
            line = self._page.line(index)
            phase = line.phase
            if phase in (*START_PHASES, Phase.WAITING):
                what = "waiting for a worker" if phase is Phase.WAITING else phase.name.lower()
                return Health(is_live=True, is_ready=False, reason=f"{actor} is {what}")
            if still_s := _seconds_since(line.stepping_since_ns, _NOT_LIVE_AFTER * supervision.step_deadline_s):
                return Health(False, False, f"{actor} has been in step {line.step} for {still_s:.0f} s")
            if still_s := _seconds_since(line.heartbeat_ns, _NOT_LIVE_AFTER * supervision.actor_deadline_s):
                return Health(False, False, f"{actor}'s event loop has not turned for {still_s:.0f} s")
        return Health(is_live=True, is_ready=True, reason="")

    def _read_startup(self) -> list[ActorStart]:
        starts = []
        now_ns = time.monotonic_ns()
        for index, actor in enumerate(self._start.all_actors):
            times = list(self._page.line(index).phase_times_ns().items())
            seconds = {}
            for (phase, since_ns), (_, until_ns) in pairwise([*times, (Phase.IDLE, now_ns)]):
                if phase in START_PHASES:
                    seconds[phase.name.lower()] = (until_ns - since_ns) / 1e9
            starts.append(ActorStart(actor, self._page.line(index).phase.name.lower(), seconds))
        return starts

    # Run

    async def run(self) -> None:
        """Run all actors; returns when the worker was stopped, raises what an actor died of."""
        jobs: dict[str, Coroutine[Any, Any, None]] = {}
        for actor in self._actors():
            jobs[actor.name] = run_actor(actor)
        if self._worker is not None:
            jobs[self._worker.name] = self._worker.run()
        tasks = {asyncio.ensure_future(job): name for name, job in jobs.items()}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self.failed_actor = tasks[task]
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    def attach(self, message: Attach, fds: dict[str, int]) -> None:
        """New boards for the scheduler of this process, or else for its worker."""
        if self._scheduler is None:
            assert self._worker is not None, "Attach goes to the processes at the ends of the boards"
            self._attach_worker(self._worker, message.boards, fds)
            return
        call_layout, result_layout = message.boards
        call_board, result_board = BoardWriter(call_layout, fds), BoardReader(result_layout, fds, 0)
        close_board(fds)
        self._scheduler.attach(call_layout.epoch, call_board, result_board)

    def gone(self, message: Gone, fds: dict[str, int]) -> None:
        """A neighbouring process died: drop the links with it and what was not read from it, take the new ones."""
        for link in message.links:
            inbox = self._inboxes.get(link.receiver)
            if inbox is not None:
                inbox.detach(link.sender)
                inbox.attach(link.sender, link.path, fds[f"link.{link.sender}.{link.receiver}"])
            else:
                outbox: Outbox[Any] = ZmqOutbox(link.path, _INBOX_MESSAGES, self._max_bytes)
                self._sender_of[link.sender, link.receiver].replace(outbox)
        for actor in self._actors():
            for dead in message.actors:
                if (actor.name, dead) in self._partners:
                    actor.gone(dead)
        if self._scheduler is not None and any(kind_of(dead) == "worker" for dead in message.actors):
            self._scheduler.worker_gone()

    def settled(self, message: Settled) -> None:
        """Everybody has parted from these actors: the requests that were with them go on."""
        for frontend in self.frontends:
            frontend.settled(message.actors, message.suspects, has_served=message.has_served)

    def beat(self) -> None:
        """Called from the event loop now and then: it turns."""
        now_ns = time.monotonic_ns()
        for actor in self._start.actors:
            self._page.line(self._start.all_actors.index(actor)).heartbeat_ns = now_ns

    def fail_streams(self, reason: str) -> None:
        """Live streams end with an error event; nothing new is taken."""
        for frontend in self.frontends:
            frontend.fail_all(reason)

    def close(self) -> None:
        """Stop in reverse order of the data's way: the worker first gets its stop, mailboxes close last."""
        if self._worker is not None:
            self._worker.close()
        for actor in self._actors():
            actor.close()

    def _actors(self) -> Sequence[Actor[Any]]:
        """Those with a mailbox."""
        others = [actor for actor in (self._scheduler, self._grammar) if actor is not None]
        return [*self.frontends, *self._tokenizers, *others]


def _max_live_requests(topology: Topology) -> int:
    """Choices that the engine holds at once: a request of so many is taken if there is nothing else."""
    return topology.scheduler.max_queued_requests + topology.scheduler.max_num_seqs


def _seconds_since(time_ns: int, limit_s: float) -> float:
    """Seconds since a time of the progress page if they are more than `limit_s`, else 0; 0 too for no time at all."""
    seconds = (time.monotonic_ns() - time_ns) / 1e9 if time_ns else 0.0
    return seconds if seconds > limit_s else 0.0
