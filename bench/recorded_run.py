"""A million recorded steps in minutes: a worker that only makes tokens up, and clients that only act."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from ..journal.plan_rows import expected_rows
from ..journal.writer import JournalWriter
from ..mailbox.messages.admission import Admit, Stop
from ..mailbox.messages.drafts import Drafts
from ..mailbox.messages.requests import Abort
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.events import Event, TokenizerGone, WorkerAttached, WorkerGone
from ..scheduling.limits import SchedulerLimits
from ..scheduling.scheduler import Scheduler

_ENCODER = msgspec.msgpack.Encoder()
_STEPS_A_LOOK = 4
"""Steps after which the queue is filled up, or when nothing runs: asking how long it is costs a part of a step."""
_EOS = 0


class RecordedRun:
    """Tiny requests in a tiny pool, with priorities; deaths, failed steps, aborts and stops at random.

    `num_events`: what the scheduler got, by kind.
    """

    def __init__(self, seed: int, stem: Path, max_bytes: int) -> None:
        self.limits = SchedulerLimits(
            max_num_seqs=4,
            max_num_batched_tokens=24,
            long_prefill_token_threshold=0,
            pipeline_depth=1,
            watermark=0.0,
            max_queued_requests=1024,
            max_queued_tokens=1_000_000,
            num_blocks=14,
            block_size=4,
            prefix_caching=True,
            max_model_len=40,
            policy="priority",
            resume_grace_s=50e-9,
            max_ledgers=64,
        )
        self.scheduler = Scheduler(self.limits)
        self.writer = JournalWriter(stem, max_bytes, self.limits, 0, self.scheduler.snapshot)
        self.num_steps = 0
        self.num_events: Counter[str] = Counter()
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
        is_due = not self._plans or self.num_steps % _STEPS_A_LOOK == 0
        if is_due and (num_waiting := self.scheduler.statistics().num_waiting) < 5:
            events += [self._admit() for _ in range(random.randint(1, 6 - num_waiting))]
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
        prompt = [random.randint(1, 3)] * random.randint(1, 12)
        sampling = SamplingParams(seed=1, max_tokens=random.randint(1, 24))
        name = f"r{self._num_admitted}"
        return Admit(name, 0, 1, "tokenizer", prompt, sampling, (_EOS,), 0, priority=random.randint(-1, 1))

    def _work(self, plan: StepPlan) -> StepResult:
        if plan.is_fresh:
            self._is_void = False
        if self._is_void or self._random.random() < 0.0005:
            outcome = StepOutcome.VOID if self._is_void else StepOutcome.FAILED
            self._is_void = True
            return StepResult(plan.epoch, plan.step, b"", b"", b"", 0, 0, outcome=outcome, error="planted")
        runs, positions = expected_rows(plan)
        tokens, num_sampled = self._tokens(plan, _ints(positions))
        return StepResult(
            plan.epoch,
            plan.step,
            runs,
            positions,
            np.array(tokens, "<i4").tobytes(),
            self._now_ns,
            self._now_ns + 5,
            num_sampled=np.array(num_sampled, "<i4").tobytes() if plan.num_drafts else b"",
        )

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
        self.num_events.update([_kind_of(event) for event in events])
        self.writer.take(self._now_ns, events)
        plan = self.scheduler.step(self._now_ns, events)
        if plan is not None:
            self.writer.planned(plan, _ENCODER.encode(plan))
        return plan

    def digest(self) -> str:
        """Over all plans, as the writer has it."""
        return self.writer._packer.chain.digest().hex()


def _kind_of(event: Event) -> str:
    if isinstance(event, StepResult) and event.outcome is not StepOutcome.DONE:
        return f"StepResult {event.outcome.name}"
    return type(event).__name__


def _ints(data: bytes) -> list[int]:
    values: list[int] = np.frombuffer(data, "<i4").tolist()
    return values
