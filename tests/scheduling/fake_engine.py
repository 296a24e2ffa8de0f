"""Scheduler, worker and clients around one clock."""

from __future__ import annotations

from collections import Counter, deque

import msgspec
import numpy as np

from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.deltas import Outgoing
from callboard.scheduling.events import Event, TokenizerGone, WorkerAttached, WorkerGone
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_client import Client
from callboard.tests.scheduling.fake_model import true_end
from callboard.tests.scheduling.fake_worker import FakeWorker, Key, board_bytes
from callboard.tests.scheduling.policy_checks import PolicyCheck


class Engine:
    """Scheduler, worker and clients around one clock that moves by one at each call."""

    def __init__(self, limits: SchedulerLimits, *, is_attached: bool = True) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.now_ns = 0
        self.epoch = 0
        self.slot_bytes = board_bytes(limits)
        self.admits: dict[Key, Admit] = {}
        self.clients: dict[Key, Client] = {}
        self.raises: dict[Key, int] = {}
        """Requests that make the step fail which computes this position of theirs."""
        self.kills: dict[Key, int] = {}
        """Requests that kill the worker which does."""
        self.guilty: set[Key] = set()
        """Requests that were alone in a step that failed."""
        self.num_deaths: Counter[Key] = Counter()
        """Deaths of the worker at which a request was in flight, in all."""
        self.in_flight: deque[list[Key]] = deque()
        self.trial_steps: set[int] = set()
        self.blocked: set[str] = set()
        """Tokenizers that take nothing."""
        self.worker: FakeWorker | None = None
        self.plans: deque[bytes] = deque()
        self.results: deque[StepResult] = deque()
        self.planned: list[StepPlan] = []
        self.had_successor: dict[int, bool] = {}
        """Step -> whether the next plan waited when it ended, of results of run steps that the scheduler saw."""
        if is_attached:
            self.attach()

    def tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def pump(self, *events: Event) -> list[StepPlan]:
        """Hand in events, publish every plan that follows, deliver the deltas."""
        made = []
        check = PolicyCheck(self.scheduler)
        plan = self.scheduler.step(self.tick(), events)
        check.see(plan)
        while plan is not None:
            encoded = msgspec.msgpack.encode(plan)
            assert len(encoded) <= self.slot_bytes
            self.plans.append(encoded)
            made.append(plan)
            self.in_flight.append(self._keys(plan))
            if self.scheduler._state.trial.is_active:
                self.trial_steps.add(plan.step)
                assert self.scheduler.num_in_flight == 1, "a trial runs at depth 1"
            assert self.scheduler.num_in_flight <= self.limits.pipeline_depth
            check = PolicyCheck(self.scheduler)
            plan = self.scheduler.step(self.tick(), ())
            check.see(plan)
        self.planned += made
        has_more = True
        while has_more:
            outgoing = self.scheduler.collect(self.blocked)
            has_more = outgoing.has_more
            self._deliver(outgoing)
        return made

    def _deliver(self, outgoing: Outgoing) -> None:
        for tokenizer, message in outgoing.deltas.items():
            keys = list(zip(message.request_ids, message.choices, strict=True))
            assert len(set(keys)) == len(keys), "two deltas of one request"
            for row, key in enumerate(keys):
                client = self.clients[key]
                assert tokenizer == client.tokenizer or message.attempts[row] != client.attempt
                client.receive(message, row)
                if client.finish is not None and client.finish.reason == "error":
                    assert key in self.guilty or self.num_deaths[key] >= 2, "an innocent request ends with an error"
                    assert client.finish.message
        for refusals in outgoing.refused.values():
            for refused in refusals:
                self.clients[refused.request_id, refused.choice].is_ended_here = True

    def admit(self, *admits: Admit) -> list[StepPlan]:
        for admit in admits:
            key = (admit.request_id, admit.choice)
            self.admits[key] = admit
            self.clients[key] = Client(admit)
        return self.pump(*admits)

    def attach(self) -> None:
        self.epoch += 1
        self.worker = FakeWorker(self.limits, self.admits, self.epoch)
        self.worker.raises, self.worker.may_starve = self.raises, self.trial_steps
        self.pump(WorkerAttached(self.epoch))

    def lose_worker(self) -> None:
        self._drop_boards()
        self.pump(WorkerGone())

    def _drop_boards(self) -> None:
        self.num_deaths.update({key for keys in self.in_flight for key in keys})
        self.worker = None
        self.plans.clear()
        self.results.clear()
        self.in_flight.clear()

    def lose_tokenizer(self, tokenizer: str) -> None:
        for client in self.clients.values():
            client.is_orphan |= client.tokenizer == tokenizer and client.is_live
        self.pump(TokenizerGone(tokenizer))

    def lose_scheduler(self) -> None:
        """A new one that knows nothing; the worker drops its rows and reads other boards, as a new one would."""
        self._drop_boards()
        self.scheduler = Scheduler(self.limits)
        self.planned, self.had_successor = [], {}
        for client in self.clients.values():
            client.is_orphan |= client.is_live

    def resume(self, key: Key, tokenizer: str = "tokenizer", num_tokens: int | None = None) -> list[StepPlan]:
        """The client's next attempt, with all that it has, or with `num_tokens` of it."""
        client = self.clients[key]
        client.attempt, client.tokenizer, client.is_orphan = client.attempt + 1, tokenizer, False
        client.token_ids = client.token_ids[:num_tokens]
        admit = msgspec.structs.replace(
            client.admit, attempt=client.attempt, tokenizer=tokenizer, output_token_ids=list(client.token_ids)
        )
        return self.pump(admit)

    def _keys(self, plan: StepPlan) -> list[Key]:
        requests = self.scheduler._state.running
        return [requests[run].key for run in np.frombuffer(plan.runs, "<i8").tolist()]

    def work(self) -> None:
        """The worker runs the oldest plan, or dies of it."""
        assert self.worker is not None
        encoded = self.plans.popleft()
        plan = msgspec.msgpack.decode(encoded, type=StepPlan)
        is_run = plan.is_fresh or not self.worker.is_void
        if self.kills and is_run and self.worker.keys_at(plan, self.kills):
            self.lose_worker()
            return
        result = self.worker.work(encoded, self.tick())
        self.results.append(msgspec.structs.replace(result, num_plans_waiting=len(self.plans)))

    def deliver(self) -> list[StepPlan]:
        """The scheduler gets the oldest result."""
        result = self.results.popleft()
        keys = self.in_flight.popleft()
        if result.outcome is StepOutcome.DONE:
            self.had_successor[result.step] = result.num_plans_waiting > 0
        elif result.outcome is StepOutcome.FAILED:
            self.in_flight = deque([] for _ in self.in_flight)
            if len(keys) == 1:
                self.guilty.add(keys[0])
        return self.pump(result)

    def run_step(self) -> list[StepPlan]:
        """One step through the worker and back; the plans that its result allowed."""
        self.work()
        return self.deliver()

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is in flight any more; a worker that died is replaced."""
        for _ in range(max_steps):
            if self.plans:
                self.work()
            if self.worker is None:
                self.attach()
            elif self.results:
                self.deliver()
            elif not self.plans:
                return
        raise AssertionError("the engine does not come to rest")

    def check_all_served(self) -> None:
        """Every client that did not end its request has the true tokens and one finish; nothing is held."""
        for client in self.clients.values():
            expected, reason, stop_reason = true_end(client.admit, self.limits)
            if client.is_ended_here or client.is_orphan or (client.finish and client.finish.reason == "error"):
                assert client.token_ids == expected[: len(client.token_ids)]
                continue
            assert client.finish is not None, f"{client.admit.request_id} was never ended"
            assert (client.token_ids, client.finish.reason) == (expected, reason)
            assert client.finish.stop_reason == stop_reason
            assert client.finish.usage.completion_tokens == len(expected)
            assert client.finish.usage.prompt_tokens == len(client.admit.prompt_token_ids)
        statistics = self.scheduler.statistics()
        assert statistics.num_running == statistics.num_waiting == statistics.num_waiting_tokens == 0
        assert statistics.num_free_blocks == self.limits.num_blocks
