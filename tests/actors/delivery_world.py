"""Frontends, tokenizers and the scheduler as they are, with everything around them made of plain values: sockets,
boards, threads, clients, a worker, and a supervisor that buries the dead.

Nothing runs by itself: `World.act` does one thing of those that are `possible`. Prompts are encoded when the world
says so, a message moves from one process to the other when the world says so, and each step of a death is an act.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any
from unittest import mock

from callboard.actors import frontend as frontend_module
from callboard.actors import scheduler as scheduler_module
from callboard.actors.faults import Faults
from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.actors.tokenizer import TokenizerActor
from callboard.errors import Overloaded
from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.requests import TextPrompt
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.request import RequestKey
from callboard.scheduling.scheduler import Scheduler
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.shm_queue import mark_of
from callboard.tests.actors.delivery_actors import SCHEDULER, make_frontend, make_scheduler_actor, make_tokenizer_actor
from callboard.tests.actors.delivery_checks import check_no_orphans, sender_maps
from callboard.tests.actors.delivery_parts import Clock, Wire
from callboard.tests.actors.delivery_reader import Reader
from callboard.tests.actors.delivery_worker import CallBoard, ResultBoard, Worker

WORKER = "worker"
Act = tuple[Any, ...]
TROUBLES = ("kill", "close", "deadline", "pass_grace", "stumble")
"""Acts that an undisturbed world does without."""


class Place:
    """One actor's name, life after life. `actor` is None from a death to the successor's start."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.actor: Any = None
        self.control: deque[tuple[Any, ...]] = deque()
        """What the supervisor has sent and the process has not followed yet."""


class Death:
    """One that the frontends have not been told of. `suspects`: marks of the requests that the actor had in hand."""

    def __init__(self, name: str, waited_for: set[str], suspects: tuple[int, ...]) -> None:
        self.name, self.waited_for, self.suspects = name, waited_for, suspects


class World:
    """One engine. `limits` bound its scheduler, `capacity` each socket and each inbox (messages).

    `num_deaths`, `num_aborts`, `num_stumbles`: how often somebody may die, a request be ended by its client or its
    frontend, and a step raise for no reason that lasts. With `turns_by_itself` the event loop comes to rest after every
    act, and a message that arrives is handled at once.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        capacity: int,
        *,
        num_frontends: int = 1,
        num_tokenizers: int = 2,
        num_deaths: int = 0,
        num_aborts: int = 1000,
        num_stumbles: int = 0,
        turns_by_itself: bool = False,
    ) -> None:
        self.limits, self.capacity = limits, capacity
        self.num_deaths, self.num_aborts, self.turns_by_itself = num_deaths, num_aborts, turns_by_itself
        self.frontends = [f"frontend.{index}" for index in range(num_frontends)]
        self.tokenizers = [f"tokenizer.{index}" for index in range(num_tokenizers)]
        self.places = {name: Place(name) for name in (*self.frontends, *self.tokenizers, SCHEDULER, WORKER)}
        self.wires: dict[tuple[str, str], Wire[Any]] = {}
        for name in self.places:
            for other in self.neighbours(name):
                self.wires[name, other] = Wire(name, other, capacity)
        self.deaths: list[Death] = []
        self.died: Counter[str] = Counter()
        """Deaths so far, by kind of actor."""
        self.num_stumbles = num_stumbles
        self.epoch = 0
        self.call_board: CallBoard | None = None
        self.result_board: ResultBoard | None = None
        self.doomed: set[tuple[RequestKey, int]] = set()
        """(request, attempt) that the scheduler ends when the grace after its tokenizer's death has passed."""
        self.clock = Clock()
        self._patches = [
            mock.patch.object(frontend_module, "time", self.clock),
            mock.patch.object(scheduler_module, "time", self.clock),
            mock.patch.object(scheduler_module, "log_event", lambda *_, **__: None),
        ]
        for patch in self._patches:
            patch.start()
        self.raises: dict[RequestKey, int] = {}
        """Requests that make each step raise that computes this position of theirs."""
        self.blamed: set[RequestKey] = set()
        """Requests that stood alone in a step that raised."""
        self._raises_at: dict[RequestKey, int] = {}
        self.admits: dict[tuple[str, int], Admit] = {}
        self.readers: list[Reader] = []
        self.num_refused_at_the_door = 0
        for name in self.places:
            self.start(name)

    def neighbours(self, name: str) -> list[str]:
        """Actors with which it has sockets."""
        if name in self.frontends:
            return self.tokenizers
        if name in self.tokenizers:
            return [*self.frontends, SCHEDULER]
        return self.tokenizers if name == SCHEDULER else []

    def living(self, *names: str) -> list[Any]:
        """The actors of these names that live."""
        return [self.places[name].actor for name in names if self.places[name].actor is not None]

    @property
    def scheduler(self) -> Scheduler | None:
        actor = self.places[SCHEDULER].actor
        return None if actor is None else actor._scheduler

    # Lives and deaths

    def start(self, name: str) -> None:
        """The first life, or a successor's: it attaches what its predecessor's neighbours may have written to."""
        place = self.places[name]
        if name == WORKER:
            place.actor = True
            self._connect_worker()
            return
        faults = Faults()
        senders = {other: Sender[Any](self.wires[name, other], faults) for other in self.neighbours(name)}
        if name in self.frontends:
            place.actor = make_frontend(name, self.capacity, senders, faults, self.limits, self._read_statistics)
        elif name in self.tokenizers:
            place.actor = make_tokenizer_actor(name, self.capacity, senders, faults, self.limits)
        else:
            place.actor = make_scheduler_actor(name, self.capacity, senders, faults, self.limits)
        for other in self.neighbours(name):
            self.wires[other, name].attach(place.actor.inbox)
        if name == SCHEDULER:
            self._connect_worker()

    def _read_statistics(self) -> SchedulerStatistics:
        """Of now; of an idle scheduler while there is none."""
        scheduler = self.scheduler
        return Scheduler(self.limits).statistics() if scheduler is None else scheduler.statistics()

    def _connect_worker(self) -> None:
        """New boards for a scheduler and a worker that both live; the worker has no rows."""
        scheduler = self.places[SCHEDULER]
        if scheduler.actor is not None and self.places[WORKER].actor is not None:
            self.epoch += 1
            trial = scheduler.actor._scheduler._state.trial
            self.call_board = CallBoard(self.limits.pipeline_depth, lambda: trial.is_active)
            self.result_board = ResultBoard()
            self.places[WORKER].actor = Worker(
                self.limits, self.admits, self.epoch, self.call_board, self.raises, self.blamed
            )
            scheduler.control.append(("attach", self.epoch, self.call_board, self.result_board))

    def kill(self, name: str, num_lost: int) -> None:
        """A process ends between two statements, with the last `num_lost` messages of each of its sockets unsent.

        The supervisor makes new sockets at once and tells the neighbours.
        """
        place = self.places[name]
        actor, place.actor = place.actor, None
        place.control.clear()
        self.num_deaths -= 1
        self.died[name.partition(".")[0]] += 1
        if name in (WORKER, SCHEDULER):
            self.call_board = None
        if name == WORKER:
            if self.places[SCHEDULER].actor is not None:
                self.places[SCHEDULER].control.append(("worker_gone",))
            return
        if name == SCHEDULER:
            self.doomed.clear()
        self._end(actor)
        for other in self.neighbours(name):
            self.wires[name, other].lose_tail(num_lost)
            self.wires[other, name].cut()
        if name in self.frontends:
            for reader in self.readers:
                if reader.frontend is actor:
                    reader.is_lost = True
        self._tell_of_death(name, self._in_hand(actor))

    def _end(self, actor: Any) -> None:
        """What a process takes with it."""
        actor.faults.cancel()
        if isinstance(actor, SchedulerActor):
            actor.close()

    def _in_hand(self, actor: Any) -> tuple[int, ...]:
        """The request whose prompt a tokenizer encoded when it died."""
        waiting = actor._threads.waiting if isinstance(actor, TokenizerActor) else ()
        return tuple(mark_of(args[0].generate.request_id) for _, _, args in list(waiting)[:1])

    def _tell_of_death(self, name: str, suspects: tuple[int, ...]) -> None:
        others = [other for other in self.neighbours(name) if self.places[other].actor is not None]
        for other in self.neighbours(name):
            if other not in others:  # dead as well: its successor starts with these
                self.wires[other, name] = Wire(other, name, self.capacity)
                self.wires[name, other] = Wire(name, other, self.capacity)
        for other in others:
            old = self.wires[name, other]
            inward = self.wires[name, other] = Wire(name, other, self.capacity)
            outward = self.wires[other, name] = Wire(other, name, self.capacity)
            self.places[other].control.append(("gone", name, old, inward, outward))
        for death in self.deaths:
            death.waited_for.discard(name)
        self.deaths.append(Death(name, set(others), suspects))
        self._settle_deaths()

    def follow(self, name: str) -> None:
        """A process follows the oldest control message."""
        place = self.places[name]
        actor = place.actor
        match place.control.popleft():
            case ("gone", other, old, inward, outward):
                if name == SCHEDULER:
                    requests = actor._scheduler._state.requests()
                    self.doomed |= {(r.key, r.attempt) for r in requests if r.tokenizer == other}
                actor.inbox.detach(other)
                old.cut()
                inward.attach(actor.inbox)
                self._sender(actor, other).replace(outward)
                actor.gone(other)
                self._part(name, other)
            case ("settled", actors, suspects):
                actor.settled(actors, suspects, has_served=True)
            case ("attach", epoch, call_board, result_board):
                actor.attach(epoch, call_board, result_board)
            case ("worker_gone",):
                actor.worker_gone()
            case message:
                raise AssertionError(message)

    def pass_grace(self) -> None:
        """The scheduler's clock goes on by more than its `resume_grace_s`."""
        self.clock.now_ns += round(self.limits.resume_grace_s * 1e9) + 1
        scheduler = self.scheduler
        if scheduler is not None:
            self.places[SCHEDULER].actor.flush()
            left = [r.key for r in scheduler._state.requests() if (r.key, r.attempt) in self.doomed]
            assert not left, f"requests of a dead tokenizer outlive their grace: {left}"
            self.doomed.clear()

    def excuse(self, key: RequestKey) -> str:
        """Why this choice may have ended with an error, if it may."""
        if key in self.blamed:
            return "it stood alone in a step that raised"
        if self.died["worker"] >= 2:
            return "poison: two deaths of the worker"
        if self.died["tokenizer"] + self.died["scheduler"] >= 3:
            return "poison: three resumes"
        return ""

    def _sender(self, actor: Any, receiver: str) -> Sender[Any]:
        """The actor's sender to `receiver`."""
        return next(senders[receiver] for senders in sender_maps(actor) if receiver in senders)

    def _part(self, name: str, other: str) -> None:
        """`name` has parted from the oldest life of `other` that it had not parted from."""
        for death in self.deaths:
            if death.name == other and name in death.waited_for:
                death.waited_for.remove(name)
                break
        self._settle_deaths()

    def _settle_deaths(self) -> None:
        """The frontends are told of those from whom everybody has parted."""
        for death in list(self.deaths):
            if self.is_parted(death):
                self.deaths.remove(death)
                for name in self.frontends:
                    if self.places[name].actor is not None:
                        self.places[name].control.append(("settled", (death.name,), death.suspects))

    def is_parted(self, death: Death) -> bool:
        return not death.waited_for

    # What can happen

    def submit(
        self,
        prompt: str,
        sampling: SamplingParams,
        frontend: int = 0,
        num_choices: int = 1,
        returns_prompt: bool = False,
        raises_at: int | None = None,
        priority: int = 0,
    ) -> None:
        """`raises_at`: each step raises that computes the position of this output token of choice 0."""
        name = self.frontends[frontend % len(self.frontends)]
        actor = self.places[name].actor
        if actor is None:
            return
        request_id = f"request-{len(self.readers)}"
        try:
            stream = actor.submit(
                request_id,
                TextPrompt(prompt),
                sampling,
                returns_prompt=returns_prompt,
                num_choices=num_choices,
                priority=priority,
            )
        except Overloaded:
            self.num_refused_at_the_door += 1
        else:
            if raises_at is not None:
                self._raises_at[request_id, 0] = raises_at
            self.readers.append(Reader(actor, stream, prompt, sampling, num_choices, returns_prompt))

    def possible(self, is_ending: bool) -> list[Act]:
        """Things that can be done now; without deaths and aborts when the world comes to its end."""
        acts: list[Act] = [] if self.turns_by_itself else [("turn",)]
        acts += [("deliver", *ends) for ends, wire in self.wires.items() if wire.can_deliver]
        for name, place in self.places.items():
            if place.actor is None:
                acts.append(("start", name))
                continue
            if place.control:
                acts.append(("follow", name))
            if name != WORKER and not self.turns_by_itself and place.actor.inbox.statistics().num_waiting:
                acts += [("take", name, 1), ("take", name, 2)]
            if name in self.tokenizers:
                acts += [("encode", name, index) for index in range(len(place.actor._threads.waiting))]
            if not is_ending and self.num_deaths:
                acts += [("kill", name, num_lost) for num_lost in self._losses(name)]
        if self.call_board is not None and self.places[WORKER].actor is not None and self.call_board.plans:
            acts.append(("work",))
            if not is_ending and self.num_stumbles:
                acts.append(("stumble",))
        if self.result_board is not None and not self.result_board.is_detached and self.result_board.silent:
            acts.append(("ring",))
        if not is_ending and self.doomed:
            acts.append(("pass_grace",))
        for index, reader in enumerate(self.readers):
            if reader.can_take and not self.turns_by_itself:
                acts.append(("read", index))
            if not is_ending and self.num_aborts and not reader.is_over:
                acts += [("close", index)] + [("deadline", index)] * (not reader.is_aborted)
        return acts

    def _losses(self, name: str) -> Iterator[int]:
        """How much of what a dead actor sent may be lost: nothing, some, all."""
        longest = max((len(self.wires[name, other].messages) for other in self.neighbours(name)), default=0)
        return iter({0, 1, longest} if longest else {0})

    async def act(self, act: Act, is_checked: bool = True) -> None:
        """Do one thing that is possible; `is_checked`: see that nothing is wrong behind it."""
        match act:
            case ("turn",):
                await asyncio.sleep(0)
            case ("deliver", sender, receiver):
                self.wires[sender, receiver].deliver()
                if self.turns_by_itself:
                    self.take(receiver, 1)
            case ("take", name, count):
                self.take(name, count)
            case ("encode", name, index):
                self.places[name].actor._threads.run_one(index)
            case ("read", index):
                self.readers[index].take()
            case ("close", index):
                self.num_aborts -= 1
                self.readers[index].is_closed = True
                self.readers[index].stream.close()
            case ("deadline", index):
                reader = self.readers[index]
                self.num_aborts -= 1
                reader.is_aborted = True
                reader.frontend._abort(reader.stream, "deadline")
            case ("start", name):
                self.start(name)
            case ("follow", name):
                self.follow(name)
            case ("kill", name, num_lost):
                self.kill(name, num_lost)
            case ("work",):
                assert self.result_board is not None
                self.result_board.hold(self.places[WORKER].actor.work_one())
            case ("stumble",):
                self.num_stumbles -= 1
                self.places[WORKER].actor.num_to_fail = 1
            case ("pass_grace",):
                self.pass_grace()
            case ("ring",):
                assert self.result_board is not None
                self.result_board.ring()
            case _:
                raise AssertionError(act)
        if self.turns_by_itself:
            await self._settle_loop(act)
            for reader in self.readers:
                while reader.can_take:
                    reader.take()
        if is_checked:
            self.check()

    async def _settle_loop(self, act: Act) -> None:
        """Nothing is left to be done by the event loop."""
        loop = asyncio.get_running_loop()
        if act[0] == "ring":
            await asyncio.sleep(0)
        while loop._ready:  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    def take(self, name: str, count: int) -> None:
        """An actor takes up to `count` messages, then sends what they brought about."""
        actor = self.places[name].actor
        for _ in range(min(count, actor.inbox.statistics().num_waiting)):
            message = actor.inbox.receive_nowait()
            if isinstance(message, Admit):
                self._note(message)
            actor.handle(message)
        actor.flush()

    def _note(self, admit: Admit) -> None:
        """The scheduler hears of a request, perhaps once more."""
        key = (admit.request_id, admit.choice)
        first = self.admits.setdefault(key, admit)
        assert admit.prompt_token_ids == first.prompt_token_ids and admit.sampling == first.sampling
        if key in self._raises_at:
            self.raises[key] = len(admit.prompt_token_ids) + self._raises_at[key]

    def check(self) -> None:
        for actor in self.living(*self.frontends, *self.tokenizers, SCHEDULER):
            if actor.faults._first is not None:
                raise actor.faults._first
        check_no_orphans(self)

    # The end

    async def finish(self) -> None:
        """Let everything that is under way come to its end, and the grace for requests of dead tokenizers pass."""
        await self._rest()
        self.pass_grace()
        await self._rest()

    async def _rest(self) -> None:
        for _ in range(20_000):
            for act in self.possible(is_ending=True):
                if act in self.possible(is_ending=True):
                    await self.act(act)
            if self.is_at_rest(self.possible(is_ending=True)):
                return
        raise AssertionError(f"the engine does not come to rest: {self.possible(is_ending=True)}")

    def is_at_rest(self, acts: list[Act]) -> bool:
        """Of these acts only trouble could change anything."""
        return all(act[0] in TROUBLES or act[0] == "turn" for act in acts) and self.is_quiet()

    def is_quiet(self) -> bool:
        board = self.result_board
        has_results = board is not None and not board.is_detached and board.results
        actors = self.living(*self.frontends, *self.tokenizers, SCHEDULER)
        return not has_results and not any(actor.faults._tasks for actor in actors)

    def close(self) -> None:
        for patch in self._patches:
            patch.stop()
        for actor in self.living(*self.frontends, *self.tokenizers, SCHEDULER):
            actor.close()
