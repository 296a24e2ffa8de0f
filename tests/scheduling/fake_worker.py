"""A worker, a client and a tokenizer made of plain values, which check everything that the scheduler sends them.

The fake model's next token is a function of all tokens before it, so a wrong token, a wrong order or a K/V read from
the wrong block changes the text. K/V of a position is the hash of the tokens up to it (and of the cache salt, which
must never be shared): each read of a row is compared with what that row's own tokens make it.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from callboard.mailbox.messages.admission import Admit, TokenDeltas
from callboard.mailbox.messages.requests import Finish
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.scheduling.events import Event, WorkerAttached, WorkerGone
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.topology.boards import plan_bytes
from callboard.topology.schema import KVCacheSection, ModelSection, SchedulerSection, Topology

EOS = 0
VOCAB = 9


def make_limits(**changes: object) -> SchedulerLimits:
    """Limits of an ordinary small engine, with changes."""
    fields: dict[str, object] = dict(
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        long_prefill_token_threshold=0,
        pipeline_depth=2,
        watermark=0.0,
        max_queued_requests=1024,
        max_queued_tokens=1_000_000,
        num_blocks=1000,
        block_size=16,
        prefix_caching=True,
        max_model_len=16_000,
    )
    return SchedulerLimits(**(fields | changes))  # type: ignore[arg-type]


def board_bytes(limits: SchedulerLimits) -> int:
    """What a slot of the call board holds for these limits."""
    topology = Topology(
        model=ModelSection("any"),
        scheduler=SchedulerSection(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            pipeline_depth=limits.pipeline_depth,
        ),
        kv_cache=KVCacheSection(block_size=limits.block_size),
    )
    return plan_bytes(topology, limits.max_model_len)


def make_admit(request_id: str, prompt: list[int], **changes: object) -> Admit:
    """An Admit; sampling parameters among the changes go where they belong."""
    names = ("seed", "max_tokens", "ignore_eos", "logprobs", "stop")
    sampling = {"seed": 1, "max_tokens": 10} | {name: changes.pop(name) for name in names if name in changes}
    fields: dict[str, object] = dict(
        request_id=request_id,
        choice=0,
        attempt=1,
        tokenizer="tokenizer",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        eos_token_ids=(EOS,),
        arrival_ns=0,
    )
    return Admit(**(fields | changes))  # type: ignore[arg-type]


def contents(token_ids: list[int], salt: str) -> list[int]:
    """K/V of each position."""
    state = hash(tuple(salt.encode()))
    return [state := hash((state, token_id)) for token_id in token_ids]


def next_token(token_ids: list[int], choice: int) -> int:
    """What the fake model samples after `token_ids`; EOS about every ninth time."""
    return contents([*token_ids, choice], "")[-1] // 7 % VOCAB


def truth(admit: Admit, limits: SchedulerLimits) -> tuple[list[int], str]:
    """Output ids and finish reason of a request, computed with no scheduler at all."""
    known = list(admit.prompt_token_ids)
    pool_tokens = limits.num_blocks * limits.block_size + 1
    while True:
        num_output = len(known) - len(admit.prompt_token_ids)
        if len(known) >= min(limits.max_model_len, pool_tokens) or num_output == admit.sampling.max_tokens:
            return known[len(admit.prompt_token_ids) :], "length"
        known.append(next_token(known, admit.choice))
        if known[-1] == EOS and not admit.sampling.ignore_eos:
            return known[len(admit.prompt_token_ids) :], "stop"


class Row:
    """A row of the persistent batch."""

    def __init__(self, run: int, choice: int, token_ids: list[int], block_ids: list[int]) -> None:
        self.run, self.choice, self.token_ids, self.block_ids = run, choice, token_ids, block_ids


class FakeWorker:
    """Executes plans in order, as data. `admits` maps request keys to what was admitted, for salts and limits."""

    def __init__(self, limits: SchedulerLimits, admits: dict[tuple[str, int], Admit], epoch: int) -> None:
        self.limits, self.admits, self.epoch = limits, admits, epoch
        self.rows: dict[int, Row] = {}
        self.keys: dict[int, tuple[str, int]] = {}
        self.kv: dict[tuple[int, int], int] = {}
        self.last_step: int | None = None

    def work(self, encoded: bytes, now_ns: int) -> StepResult:
        plan = msgspec.msgpack.decode(encoded, type=StepPlan)
        assert plan.epoch == self.epoch
        assert self.last_step is None or plan.step == self.last_step + 1, "a plan was lost"
        self.last_step = plan.step
        self._apply(plan)
        return self._run(plan, now_ns)

    def _apply(self, plan: StepPlan) -> None:
        for row in ints(plan.removed_rows):
            del self.rows[row]
        for new in plan.new_rows:
            assert 0 <= new.row < self.limits.max_num_seqs and new.row not in self.rows, "the row is taken"
            key = (new.request_id, new.choice)
            admit = self.admits[key]
            token_ids = ints(new.token_ids)
            assert new.num_prompt_tokens == len(admit.prompt_token_ids)
            assert token_ids[: new.num_prompt_tokens] == list(admit.prompt_token_ids)
            assert new.sampling == msgspec.structs.replace(admit.sampling, stop=())
            self.rows[new.row] = Row(new.run, new.choice, token_ids, ints(new.block_ids))
            self.keys[new.run] = key
        known = [len(new.token_ids) // 4 for new in plan.new_rows]
        assert len(known) <= 1 or sum(known) <= self.limits.plan_tokens, "too many known tokens travel in one plan"
        for row, block in zip(ints(plan.block_rows), ints(plan.block_ids), strict=True):
            self.rows[row].block_ids.append(block)

    def _run(self, plan: StepPlan, now_ns: int) -> StepResult:
        size = self.limits.block_size
        rows, starts, counts = ints(plan.rows), ints(plan.starts), ints(plan.num_tokens)
        runs = np.frombuffer(plan.runs, "<i8").tolist()
        samples = np.frombuffer(plan.samples, np.bool_).tolist()
        assert len(rows) == len(set(rows)) == len(runs) == len(samples) >= 1
        assert sum(counts) <= self.limits.max_num_batched_tokens
        assert all(1 <= count <= (self.limits.long_prefill_token_threshold or sum(counts)) for count in counts)
        if self.limits.max_num_batched_tokens >= self.limits.max_num_seqs:
            for row in self.rows.keys() - set(rows):
                admit = self.admits[self.keys[self.rows[row].run]]
                most = len(admit.prompt_token_ids) + (admit.sampling.max_tokens or 0)
                assert len(self.rows[row].token_ids) == min(most, self.limits.max_total_tokens), "a row starves"
        pairs = zip(rows, runs, strict=True)
        own = [contents(self.rows[row].token_ids, self.admits[self.keys[run]].cache_salt) for row, run in pairs]
        writer: dict[int, int] = {}
        for index, (row, run, start, count) in enumerate(zip(rows, runs, starts, counts, strict=True)):
            batch_row = self.rows[row]
            assert batch_row.run == run, "the row belongs to another run"
            assert start + count <= len(batch_row.token_ids), "a token is computed that nobody knows"
            for position in range(start, start + count):
                block = batch_row.block_ids[position // size]
                assert 0 <= block < self.limits.num_blocks
                assert writer.setdefault(block, run) == run, "a block is written by two rows in one step"
                self.kv[block, position % size] = own[index][position]
        for index, (row, start, count) in enumerate(zip(rows, starts, counts, strict=True)):
            blocks = self.rows[row].block_ids
            for position in range(start + count):
                read = self.kv.get((blocks[position // size], position % size))
                assert read == own[index][position], f"row {row} reads another's K/V at position {position}"
        return self._sample(plan, rows, runs, starts, counts, samples, now_ns)

    def _sample(
        self,
        plan: StepPlan,
        rows: list[int],
        runs: list[int],
        starts: list[int],
        counts: list[int],
        samples: list[bool],
        now_ns: int,
    ) -> StepResult:
        out: list[tuple[int, int, int]] = []
        wanted: list[tuple[int, int]] = []
        for row, run, start, count, is_sampled in zip(rows, runs, starts, counts, samples, strict=True):
            batch_row, admit = self.rows[row], self.admits[self.keys[run]]
            position = start + count
            assert is_sampled == (position == len(batch_row.token_ids)), "a row samples before its last known token"
            if not is_sampled:
                continue
            assert position < self.limits.max_total_tokens, "sampled past the model's length"
            assert admit.sampling.max_tokens is not None
            assert position - len(admit.prompt_token_ids) < admit.sampling.max_tokens, "sampled past max_tokens"
            token_id = next_token(batch_row.token_ids, batch_row.choice)
            batch_row.token_ids.append(token_id)
            if admit.sampling.logprobs is not None:
                wanted.append((len(out), admit.sampling.logprobs))
            out.append((run, position, token_id))
        width = max((count for _, count in wanted), default=0)
        top = [[(out[index][2] + rank) % VOCAB for rank in range(width)] for index, _ in wanted]
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=np.array([run for run, _, _ in out], "<i8").tobytes(),
            positions=np.array([position for _, position, _ in out], "<i4").tobytes(),
            token_ids=np.array([token_id for _, _, token_id in out], "<i4").tobytes(),
            start_ns=now_ns,
            end_ns=now_ns,
            logprob_rows=np.array([index for index, _ in wanted], "<i4").tobytes(),
            logprobs=np.array([-out[index][2] / 4 for index, _ in wanted], "<f4").tobytes(),
            top_ids=np.array(top, "<i4").tobytes(),
            top_logprobs=(np.array(top, "<f4") / -4).tobytes(),
        )


class Client:
    """What one choice of one request has received; the delivery rules of a receiver, and its checks."""

    def __init__(self, admit: Admit) -> None:
        self.admit = admit
        self.attempt = admit.attempt
        self.token_ids: list[int] = []
        self.finish: Finish | None = None
        self.is_ended_here = False
        """It stopped or aborted the request itself, or was refused."""

    def receive(self, message: TokenDeltas, row: int) -> None:
        if message.attempts[row] != self.attempt:
            return
        assert not self.is_ended_here, "tokens after the client's own end"
        assert self.finish is None, "something comes after the end"
        position, new = message.positions[row], message.token_ids[row]
        assert position <= len(self.token_ids), "a gap"
        assert self.token_ids[position : position + len(new)] == new[: len(self.token_ids) - position]
        self.token_ids = self.token_ids[:position] + new
        self.finish = message.finishes.get(row)
        assert new or self.finish is not None, "an empty delta"
        wanted = self.admit.sampling.logprobs
        assert (row in message.logprobs) == (wanted is not None and bool(new))
        for token_id, entry in zip(new, message.logprobs.get(row, ()), strict=wanted is not None):
            assert (entry.token_id, entry.logprob) == (token_id, -token_id / 4)
            assert entry.top_ids == [(token_id + rank) % VOCAB for rank in range(wanted or 0)]
            assert entry.top_logprobs == [-top / 4 for top in entry.top_ids]


class Engine:
    """Scheduler, worker and clients around one clock that moves by one at each call."""

    def __init__(self, limits: SchedulerLimits, *, is_attached: bool = True) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.now_ns = 0
        self.epoch = 0
        self.admits: dict[tuple[str, int], Admit] = {}
        self.clients: dict[tuple[str, int], Client] = {}
        self.worker: FakeWorker | None = None
        self.plans: deque[bytes] = deque()
        self.results: deque[StepResult] = deque()
        self.planned: list[StepPlan] = []
        self.had_successor: dict[int, bool] = {}
        """Step -> whether the next plan waited when it ended, of results that the scheduler has seen."""
        if is_attached:
            self.attach()

    def tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def pump(self, *events: Event) -> list[StepPlan]:
        """Hand in events, publish every plan that follows, deliver the deltas."""
        made = []
        plan = self.scheduler.step(self.tick(), events)
        while plan is not None:
            encoded = msgspec.msgpack.encode(plan)
            assert len(encoded) <= board_bytes(self.limits)
            self.plans.append(encoded)
            made.append(plan)
            assert self.scheduler.num_in_flight <= self.limits.pipeline_depth
            plan = self.scheduler.step(self.tick(), ())
        self.planned += made
        outgoing = self.scheduler.collect()
        for message in outgoing.deltas.values():
            keys = list(zip(message.request_ids, message.choices, strict=True))
            assert len(set(keys)) == len(keys), "two deltas of one request"
            for row, key in enumerate(keys):
                self.clients[key].receive(message, row)
        for refusals in outgoing.refused.values():
            for refused in refusals:
                self.clients[refused.request_id, refused.choice].is_ended_here = True
        return made

    def admit(self, *admits: Admit) -> list[StepPlan]:
        for admit in admits:
            key = (admit.request_id, admit.choice)
            self.admits[key] = admit
            self.clients[key] = Client(admit)
        return self.pump(*admits)

    def attach(self) -> None:
        self.epoch += 1
        self.worker = FakeWorker(self.limits, self.admits, self.epoch)
        self.pump(WorkerAttached(self.epoch))

    def lose_worker(self) -> None:
        self.worker = None
        self.plans.clear()
        self.results.clear()
        self.pump(WorkerGone())

    def work(self) -> None:
        """The worker runs the oldest plan."""
        assert self.worker is not None
        result = self.worker.work(self.plans.popleft(), self.tick())
        self.results.append(msgspec.structs.replace(result, num_plans_waiting=len(self.plans)))

    def deliver(self) -> list[StepPlan]:
        """The scheduler gets the oldest result."""
        result = self.results.popleft()
        self.had_successor[result.step] = result.num_plans_waiting > 0
        return self.pump(result)

    def run_step(self) -> list[StepPlan]:
        """One step through the worker and back; the plans that its result allowed."""
        self.work()
        return self.deliver()

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is in flight any more."""
        for _ in range(max_steps):
            if not self.plans and not self.results:
                return
            if self.plans:
                self.work()
            self.deliver()
        raise AssertionError("the engine does not come to rest")

    def check_all_served(self) -> None:
        """Every client that did not end its request has the true tokens and one finish; nothing is held."""
        for client in self.clients.values():
            expected, reason = truth(client.admit, self.limits)
            if client.is_ended_here:
                assert client.token_ids == expected[: len(client.token_ids)]
                continue
            assert client.finish is not None, f"{client.admit.request_id} was never ended"
            assert (client.token_ids, client.finish.reason) == (expected, reason)
            assert client.finish.usage.completion_tokens == len(expected)
            assert client.finish.usage.prompt_tokens == len(client.admit.prompt_token_ids)
        statistics = self.scheduler.statistics()
        assert statistics.num_running == statistics.num_waiting == statistics.num_waiting_tokens == 0
        assert statistics.num_free_blocks == self.limits.num_blocks


def ints(data: bytes) -> list[int]:
    """Values of an int32 array."""
    return np.frombuffer(data, "<i4").tolist()
