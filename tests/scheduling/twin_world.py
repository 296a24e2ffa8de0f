"""Scheduler and twin side by side, with a worker and clients that check what they are sent; every call is compared."""

from __future__ import annotations

from collections import deque

import msgspec

from callboard.mailbox.messages.admission import AddInput, Admit, Stop
from callboard.mailbox.messages.grammar import GrammarReady
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.scheduling.deltas import Outgoing
from callboard.scheduling.events import Event, TokenizerGone, WorkerAttached, WorkerGone
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_client import Client
from callboard.tests.scheduling.fake_connector import FakeConnector
from callboard.tests.scheduling.fake_model import contents, true_end
from callboard.tests.scheduling.fake_session import Session
from callboard.tests.scheduling.fake_worker import FakeWorker, Key
from callboard.tests.scheduling.twin import Twin
from callboard.tests.scheduling.twin_compare import (
    Difference,
    PlanReader,
    as_told,
    brief,
    compare_plans,
    compare_states,
    facts_of_scheduler,
)
from callboard.tests.scheduling.twin_plan import TwinPlan

MAX_STORY = 60
GRAMMARS = ("grammar.0", "grammar.1", "grammar.2")


class World:
    """The clock moves by one at each call of the scheduler, and by jumps."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.twin = Twin(limits)
        self.reader = PlanReader()
        self.now_ns = 0
        self.epoch = 0
        self.num_calls = self.num_named = 0
        self.admits: dict[Key, Admit] = {}
        self.clients: dict[Key, Client] = {}
        self.connector = FakeConnector(limits.block_size)
        self.talks: dict[Key, Session] = {}
        self.blocked: set[str] = set()
        """Tokenizers that take nothing."""
        self.raises: dict[Key, int] = {}
        """Requests that make the step fail which computes this position of theirs."""
        self.kills: dict[Key, int] = {}
        """Requests that kill the worker which does."""
        self.trial_steps: set[int] = set()
        self.worker: FakeWorker | None = None
        self.plans: deque[bytes] = deque()
        self.results: deque[StepResult] = deque()
        self._story: deque[tuple[int, Event | TwinPlan]] = deque(maxlen=MAX_STORY)
        """What happened last, and when."""
        self.attach()

    def call(self, *events: Event) -> None:
        """Hand in events, compare each plan that follows and what is told to whom."""
        self.num_calls += 1
        self._story.extend((self.now_ns + 1, event) for event in events)
        while (plan := self._step(events)) is not None:
            self.plans.append(msgspec.msgpack.encode(plan))
            if self.twin.state.groups:
                self.trial_steps.add(plan.step)
            events = ()
        outgoing = self.scheduler.collect(self.blocked)
        self.twin.note_told(self.blocked)
        self._deliver(outgoing)
        self.twin.note_loads(outgoing.loads)
        self.connector.begin(outgoing.loads)
        assert (self.scheduler.next_deadline_ns() or float("inf")) == self.twin.next_deadline_ns()
        assert self.scheduler.check_integrity() == [], "a block has leaked"
        compare_states(self.scheduler, self.twin)
        assert not self.twin.state.refused, f"{list(self.twin.state.refused)} were not refused"
        for key, client in self.clients.items():
            if client.finish is None and not client.is_ended_here:
                self._compare_client(key, client)

    def _step(self, events: tuple[Event, ...]) -> StepPlan | None:
        self.now_ns += 1
        expected = self.twin.step(self.now_ns, events)
        plan = self.scheduler.step(self.now_ns, events)
        read = None if plan is None else self.reader.read(plan)
        if read is not None:
            self._story.append((self.now_ns, read))
        compare_plans(read, expected)
        if plan is not None:
            self.twin.note_runs(self.reader.runs(plan))
        assert self.scheduler.num_in_flight == len(self.twin.state.in_flight) <= self.limits.pipeline_depth
        return plan

    def _deliver(self, outgoing: Outgoing) -> None:
        for message in outgoing.deltas.values():
            for row, key in enumerate(zip(message.request_ids, message.choices, strict=True)):
                client = self.clients[key]
                has_ended = not client.is_live
                num_pauses = len(client.pauses)
                client.receive(message, row)
                for finish in client.pauses[num_pauses:]:
                    self.talks[key].pause(finish)
                if client.finish is not None and not has_ended:
                    self._check_end(client)
        for refusals in outgoing.refused.values():
            for refused in refusals:
                key = (refused.request_id, refused.choice)
                self.clients[key].is_ended_here = True
                assert (refused.status, refused.code) == (429, self.twin.state.refused.pop(key))

    def _compare_client(self, key: Key, client: Client) -> None:
        """What a live one has been told is what the twin knows, once its tokenizer takes what there is."""
        if client.is_orphan or client.tokenizer in self.blocked:
            return
        request = self.twin.state.live.get(key)
        if request is None:
            raise Difference(f"the twin has ended {key} ({self.twin.state.ends[key]}), its client was not told")
        if client.token_ids[request.num_come_with :] != request.output:
            raise Difference(f"{key} was told {client.token_ids}, the twin has {request.output}")
        told = [as_told(finish) for finish in client.pauses]
        if told != self.twin.state.pauses.get(key, []):
            raise Difference(f"{key} was told of {told}, the twin of {self.twin.state.pauses[key]}")

    def _check_end(self, client: Client) -> None:
        """A client that has its end has the one that the twin says, and the model's own tokens."""
        assert client.finish is not None
        key = (client.admit.request_id, client.admit.choice)
        told, num_before, output = self.twin.state.ends[key]
        assert as_told(client.finish) == told, f"{key} was told {client.finish}, the twin says {told}"
        assert client.token_ids[num_before:] == output
        assert (client.finish.reason == "error") == bool(client.finish.message)
        if client.admit.is_session:
            return  # where each turn ends the twin says
        true_output, reason, stop_reason = true_end(client.admit, self.limits)
        if told.end.reason in ("error", "timeout"):
            assert output == true_output[: len(output)]
        else:
            assert (output, *told.end[:2]) == (true_output, reason, stop_reason)

    def admit(self, *admits: Admit) -> None:
        for admit in admits:
            key = (admit.request_id, admit.choice)
            self.admits[key] = admit
            self.clients[key] = Client(admit)
            if admit.is_session:
                self.talks[key] = Session(admit)
        self.call(*admits)

    def attach(self) -> None:
        self.epoch += 1
        self.worker = FakeWorker(self.limits, self.admits, self.epoch)
        self.worker.raises, self.worker.may_starve = self.raises, self.trial_steps
        self.call(WorkerAttached(self.epoch))

    def lose_worker(self) -> None:
        self.worker = None
        self.plans.clear()
        self.results.clear()
        self.call(WorkerGone())

    def lose_tokenizer(self, tokenizer: str) -> None:
        for client in self.clients.values():
            client.is_orphan |= client.tokenizer == tokenizer and client.is_live
        self.call(TokenizerGone(tokenizer))

    def resume(self, key: Key, tokenizer: str) -> None:
        """The client's next attempt, with all that it has."""
        client = self.clients[key]
        client.attempt, client.tokenizer, client.is_orphan = client.attempt + 1, tokenizer, False
        if key in self.talks:
            client.pauses.clear()
            self.twin.state.pauses.pop(key, None)
            self.call(self.talks[key].begin_again(client.token_ids, client.attempt, tokenizer))
            return
        output = list(client.token_ids)
        self.call(
            msgspec.structs.replace(client.admit, attempt=client.attempt, tokenizer=tokenizer, output_token_ids=output)
        )

    def restore(self) -> None:
        """Another scheduler stands where this one stood."""
        self.scheduler = Scheduler.restore(self.limits, self.scheduler.snapshot())
        self.call()

    def work(self) -> None:
        """The worker runs the oldest plan, while transfers write to its memory, or dies of it."""
        assert self.worker is not None
        self.worker.turns = self.twin.state.turns
        self.connector.write(self.worker.kv)
        encoded = self.plans.popleft()
        plan = msgspec.msgpack.decode(encoded, type=StepPlan)
        is_run = plan.is_fresh or not self.worker.is_void
        if self.kills and is_run and self.worker.keys_at(plan, self.kills):
            self.lose_worker()
        else:
            self.results.append(self.worker.work(encoded, self.now_ns))

    def deliver(self) -> None:
        """The scheduler gets the oldest result."""
        self.call(self.results.popleft())

    def answer_load(self, transfer: int, num_tokens: int) -> None:
        """A transfer is over, with so many tokens."""
        load = self.connector.loads[transfer]
        admit = self.admits[load.request_id, load.choice]
        kv = None if self.worker is None else self.worker.kv
        loaded = contents(list(admit.prompt_token_ids), admit.cache_salt)
        self.call(self.connector.answer(transfer, num_tokens, loaded, kv))

    def live(self) -> list[Key]:
        """Requests that their clients wait for, and that have not to be resumed first."""
        return [key for key, client in self.clients.items() if client.is_live and not client.is_orphan]

    def open_sessions(self) -> list[Key]:
        """Those that do not end by themselves."""
        live = self.twin.state.live
        return [key for key in self.live() if key in live and live[key].is_open]

    def add_input(self, key: Key, token_ids: list[int], *, is_last: bool) -> None:
        """A client says more to a session; at a wrong time nobody hears it."""
        event = AddInput(key[0], key[1], self.clients[key].attempt, token_ids, is_last)
        if self.talks[key].is_paused:
            self.talks[key].inputs.append(event)
        self.call(event)

    def num_told_of_turn(self, key: Key) -> int:
        """Output tokens of the turn that the scheduler is in, which the client has."""
        num_told = len(self.clients[key].token_ids) - self.talks[key].turn_start
        return max(0, min(num_told, len(self.twin.state.live[key].turn_output)))

    def cut_turn(self, key: Key, position: int) -> None:
        """The tokenizer of a session has found a stop string, which ends the turn."""
        client = self.clients[key]
        del client.token_ids[position + 1 :]
        self.talks[key].cut(position + 1)
        self.call(Stop(key[0], key[1], client.attempt, position))

    def orphans(self) -> list[Key]:
        return [key for key, client in self.clients.items() if client.is_live and client.is_orphan]

    def finish(self) -> None:
        """Everything that can still happen does; then nothing is held, and every client has its end."""
        self.blocked.clear()
        if self.worker is None:
            self.attach()
        self.call()
        for key in self.orphans():
            self.resume(key, "tokenizer.0")
        for grammar_key in GRAMMARS:
            self.call(GrammarReady(grammar_key))
        while True:
            paused = [key for key in self.open_sessions() if self.talks[key].is_paused]
            if self.worker is None:
                self.attach()
            elif self.plans:
                self.work()
            elif self.results:
                self.deliver()
            elif self.connector.loads:
                self.answer_load(next(iter(self.connector.loads)), 0)
            elif paused:
                self.add_input(paused[0], [], is_last=True)
            else:
                break
        unended = [key for key, client in self.clients.items() if client.is_live]
        assert not unended, "\n".join([f"{unended} were never ended", *facts_of_scheduler(self.scheduler).lines()])
        assert not self.twin.state.live
        assert self.scheduler.statistics().num_free_blocks == self.limits.num_blocks

    def story(self) -> list[str]:
        """The limits, the last events and plans, for people."""
        lines = [brief(self.limits)]
        for now_ns, item in self._story:
            if isinstance(item, TwinPlan):
                lines += [f"{now_ns}:   {line}" for line in item.lines()]
            else:
                lines.append(f"{now_ns}: {brief(item)}")
        return lines

    def new_name(self) -> str:
        self.num_named += 1
        return f"r{self.num_named}"

    def copy(self, admit: Admit, name: str, choice: int) -> Admit:
        """The same prompt and parameters, another request."""
        return msgspec.structs.replace(admit, request_id=name, choice=choice)
