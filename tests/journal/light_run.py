"""A million steps in minutes: a worker that only makes tokens up, and clients that only act."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from callboard.journal import JournalWriter
from callboard.journal.plan_rows import expected_rows
from callboard.mailbox.messages.admission import Stop
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.events import Event, TokenizerGone, WorkerAttached, WorkerGone
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.fake_worker import make_admit, make_limits


class LightRun:
    """Tiny requests in a tiny pool, with priorities; deaths, failed steps, aborts and stops at random."""

    def __init__(self, seed: int, stem: Path) -> None:
        self.limits = make_limits(
            max_num_seqs=4,
            max_num_batched_tokens=24,
            num_blocks=14,
            block_size=4,
            max_model_len=40,
            pipeline_depth=1,
            policy="priority",
            resume_grace_s=50e-9,
        )
        self.scheduler = Scheduler(self.limits)
        self.writer = JournalWriter(stem, 1 << 40, self.limits, 0)
        self.num_steps = 0
        self._random = Random(seed)
        self._now_ns = self._epoch = self._num_admitted = 0
        self._plans: deque[StepPlan] = deque()
        self._is_void = False
        self._attach()

    def run(self, num_steps: int) -> None:
        while self.num_steps < num_steps:
            self._call(self._events())
        self.writer.close()

    def _events(self) -> list[Event]:
        random = self._random
        luck = random.random()
        events: list[Event] = []
        if luck < 0.0005:
            self._plans.clear()
            self._epoch += 1
            self._is_void = False
            return [WorkerGone(), WorkerAttached(self._epoch)]
        if luck < 0.001:
            events.append(TokenizerGone("tokenizer"))
        if self.scheduler.statistics().num_waiting < 3:
            events += [self._admit() for _ in range(random.randint(1, 3))]
        if luck > 0.98:
            name = f"r{random.randint(max(0, self._num_admitted - 8), self._num_admitted)}"
            events.append(Abort(name, 1, "client") if luck > 0.99 else Stop(name, 0, 1, random.randint(0, 5)))
        if self._plans:
            plan = self._plans.popleft()
            result = self._work(plan)
            events.append(result)
            if random.random() < 0.3:
                events += self._guess(result)
        return events

    def _admit(self) -> Event:
        random = self._random
        self._num_admitted += 1
        return make_admit(
            f"r{self._num_admitted}",
            [random.randint(1, 3)] * random.randint(1, 12),
            max_tokens=random.randint(1, 24),
            priority=random.randint(-1, 1),
        )

    def _work(self, plan: StepPlan) -> StepResult:
        if plan.is_fresh:
            self._is_void = False
        if self._is_void or self._random.random() < 0.0005:
            outcome = StepOutcome.VOID if self._is_void else StepOutcome.FAILED
            self._is_void = True
            return StepResult(plan.epoch, plan.step, b"", b"", b"", 0, 0, outcome=outcome, error="planted")
        runs, positions = expected_rows(plan)
        tokens, num_sampled = self._tokens(plan, np.frombuffer(positions, "<i4").tolist())
        result = StepResult(plan.epoch, plan.step, runs, positions, b"", self._now_ns, self._now_ns + 5)
        sampled = np.array(num_sampled, "<i4").tobytes() if plan.num_drafts else b""
        return msgspec.structs.replace(result, token_ids=np.array(tokens, "<i4").tobytes(), num_sampled=sampled)

    def _tokens(self, plan: StepPlan, positions: list[int]) -> tuple[list[int], list[int]]:
        """Of each sampling row the drafts that are accepted, and one token more; how many these are."""
        samples = np.frombuffer(plan.samples, np.bool_).tolist()
        num_drafts = np.frombuffer(plan.num_drafts, "<i4").tolist() or [0] * len(samples)
        drafts = iter(np.frombuffer(plan.draft_ids, "<i4").tolist())
        tokens: list[int] = []
        num_sampled: list[int] = []
        places = iter(positions)
        for is_sampled, count in zip(samples, num_drafts, strict=True):
            guesses = [next(drafts) for _ in range(count)]
            if is_sampled:
                accepted = guesses[: self._random.randint(0, count)]
                tokens += [*accepted, 1 + (next(places) + len(accepted)) * 7 % 11]
                num_sampled.append(len(accepted) + 1)
        return tokens, num_sampled

    def _guess(self, result: StepResult) -> list[Event]:
        """Drafts behind what this result made known."""
        runs = np.frombuffer(result.runs, "<i8").tolist()
        counts = np.frombuffer(result.num_sampled, "<i4").tolist() or [1] * len(runs)
        known = [position + count for position, count in zip(_ints(result.positions), counts, strict=True)]
        return [Drafts(runs, known, [[self._random.randint(1, 9) for _ in range(3)] for _ in runs])]

    def _attach(self) -> None:
        self._epoch += 1
        self._call([WorkerAttached(self._epoch)])

    def _call(self, events: list[Event]) -> None:
        plan = self._step(events)
        while plan is not None:
            self._plans.append(plan)
            self.num_steps += 1
            plan = self._step([])
        while self.scheduler.collect().has_more:
            pass
        self.writer.write_due()

    def _step(self, events: list[Event]) -> StepPlan | None:
        self._now_ns += 1
        self.writer.take(self._now_ns, events)
        plan = self.scheduler.step(self._now_ns, events)
        if plan is not None:
            self.writer.planned(plan, msgspec.msgpack.encode(plan))
        return plan

    def digest(self) -> str:
        """Over all plans, as the writer has it."""
        return self.writer._packer.chain.digest().hex()


def _ints(data: bytes) -> list[int]:
    values: list[int] = np.frombuffer(data, "<i4").tolist()
    return values
