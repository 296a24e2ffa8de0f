"""A worker, a client and a tokenizer made of plain values, which check everything that the scheduler sends them.

The fake model's next token is a function of all tokens before it, so a wrong token, a wrong order or a K/V read from
the wrong block changes the text. K/V of a position is the hash of the tokens up to it (and of the cache salt, which
must never be shared): each read of a row is compared with what that row's own tokens make it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container

import msgspec
import numpy as np

from callboard.mailbox.messages.admission import Admit, TokenDeltas
from callboard.mailbox.messages.requests import Finish
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.events import Event, TokenizerGone, WorkerAttached, WorkerGone
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.topology.boards import plan_bytes
from callboard.topology.schema import KVCacheSection, ModelSection, SchedulerSection, Topology

EOS = 0
VOCAB = 9

Key = tuple[str, int]
"""(request_id, choice)"""


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
    """Executes plans in order, as data. `admits` maps request keys to what was admitted, for salts and limits.

    A step that computes the position that `raises` has for a request fails, as do the next `num_to_fail`; until a fresh
    plan comes what stands behind it is void. What a failed step wrote is garbage.
    """

    def __init__(self, limits: SchedulerLimits, admits: dict[Key, Admit], epoch: int) -> None:
        self.limits, self.admits, self.epoch = limits, admits, epoch
        self.rows: dict[int, Row] = {}
        self.keys: dict[int, Key] = {}
        self.kv: dict[tuple[int, int], int] = {}
        self.last_step: int | None = None
        self.raises: dict[Key, int] = {}
        self.num_to_fail = 0
        self.is_void = False
        self.may_starve: Container[int] | None = None
        """Steps that may leave rows out which need tokens; None: any."""

    def work(self, encoded: bytes, now_ns: int) -> StepResult:
        plan = msgspec.msgpack.decode(encoded, type=StepPlan)
        assert plan.epoch == self.epoch
        assert self.last_step is None or plan.step == self.last_step + 1, "a plan was lost"
        self.last_step = plan.step
        assert not plan.is_fresh or self.is_void, "a fresh plan though no step failed"
        if plan.is_fresh:
            assert not plan.removed_rows and sorted(new.row for new in plan.new_rows) == sorted(ints(plan.rows))
            self.rows.clear()
            self.is_void = False
        if self.is_void:
            return self._nothing(plan, now_ns, StepOutcome.VOID)
        self._apply(plan)
        if self.num_to_fail or self.keys_at(plan, self.raises):
            self.num_to_fail = max(0, self.num_to_fail - 1)
            self.is_void = True
            self._write_garbage(plan)
            return self._nothing(plan, now_ns, StepOutcome.FAILED)
        return self._run(plan, now_ns)

    def keys_at(self, plan: StepPlan, positions: dict[Key, int]) -> list[Key]:
        """The requests that compute their position of `positions` in this step."""
        named = {new.run: (new.request_id, new.choice) for new in plan.new_rows}
        runs = np.frombuffer(plan.runs, "<i8").tolist()
        found = []
        for run, start, count in zip(runs, ints(plan.starts), ints(plan.num_tokens), strict=True):
            key = named.get(run) or self.keys[run]
            if start <= positions.get(key, -1) < start + count:
                found.append(key)
        return found

    def _write_garbage(self, plan: StepPlan) -> None:
        for row, start, count in zip(ints(plan.rows), ints(plan.starts), ints(plan.num_tokens), strict=True):
            for position in range(start, start + count):
                block = self.rows[row].block_ids[position // self.limits.block_size]
                self.kv[block, position % self.limits.block_size] = -1

    def _nothing(self, plan: StepPlan, now_ns: int, outcome: StepOutcome) -> StepResult:
        error = "RuntimeError: a planted fault" if outcome is StepOutcome.FAILED else ""
        return StepResult(plan.epoch, plan.step, b"", b"", b"", now_ns, now_ns, outcome=outcome, error=error)

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
        has_tokens_for_all = self.limits.max_num_batched_tokens >= self.limits.max_num_seqs
        if has_tokens_for_all and self.may_starve is not None and plan.step not in self.may_starve:
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
        self.tokenizer = admit.tokenizer
        self.is_orphan = False
        """Its tokenizer or scheduler is gone, and it has not resumed."""
        self.token_ids: list[int] = []
        self.finish: Finish | None = None
        self.is_ended_here = False
        """It stopped or aborted the request itself, or was refused."""

    @property
    def is_live(self) -> bool:
        return self.finish is None and not self.is_ended_here

    def receive(self, message: TokenDeltas, row: int) -> None:
        if message.attempts[row] != self.attempt:
            return
        assert not self.is_orphan, "tokens for a dead tokenizer"
        if self.is_ended_here:  # the end crossed the request's own, which had not been sent
            assert row in message.finishes, "tokens after the client's own end"
            return
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
        plan = self.scheduler.step(self.tick(), events)
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
            plan = self.scheduler.step(self.tick(), ())
        self.planned += made
        outgoing = self.scheduler.collect(self.blocked)
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
            expected, reason = truth(client.admit, self.limits)
            if client.is_ended_here or client.is_orphan or (client.finish and client.finish.reason == "error"):
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
