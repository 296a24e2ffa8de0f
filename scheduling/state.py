"""The scheduler's state, and the few moves on it that keep its parts in step with one another."""

from __future__ import annotations

from collections.abc import Iterator

from ..kv_cache.block_pool import BlockPool
from ..kv_cache.prefix_cache import find_prefix, register_full_blocks
from .constrained import ConstrainedRows
from .counters import Counters
from .deadlines import Deadlines
from .deltas import Outbox
from .draft_lengths import DraftLengths
from .drain_rate import DrainRate
from .estimate import START
from .grammars import Grammars
from .leak_ledger import LeakLedger
from .ledger import LedgerBook, PreemptionCause
from .limits import SchedulerLimits
from .policy import make_policies
from .policy_views import OrderView
from .request import Request, RequestKey, RequestState
from .row_arrays import RowArrays
from .step_log import StepLog
from .tenants import TenantCounters
from .transfers import Transfers
from .trial import Trial
from .wait_clock import WaitCause
from .waiting_lines import HeapLines

_HELD_BACK_FOR = {
    RequestState.WAITING_FOR_GRAMMAR: WaitCause.GRAMMAR,
    RequestState.WAITING_FOR_REMOTE_KV: WaitCause.REMOTE_KV,
}


class SchedulerState:
    """Every live request is in one of `waiting`, `paused`, `running`.

    Of the waiting, `lines` holds those that could go if there were room: not those that wait for a grammar or for keys
    and values.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.now_ns = 0
        """Of the last call of the scheduler's `step`."""
        self.pool = BlockPool(limits.num_blocks, limits.block_size, limits.prefix_caching)
        self.rows: RowArrays[Request] = RowArrays(limits.max_num_seqs, limits.block_size)
        self.full_blocks: list[tuple[Request, int, int]] = []
        """Of running requests, in the order in which they became full: blocks [first, end) that are not findable yet.

        Nobody can tell: they are made so before anybody looks, or gives blocks back, and else when the plan is out.
        """
        self.steps = StepLog()
        self.counters = Counters()
        self.ledgers = LedgerBook(limits)
        self.leaks = LeakLedger(limits.num_blocks, limits.max_num_seqs)
        self.outbox = Outbox(self.rows)
        self.policies = make_policies(limits)
        self.lines = HeapLines(self.policies.order)
        self.waiting: dict[RequestKey, Request] = {}
        self.paused: dict[RequestKey, Request] = {}
        """Streaming sessions between two inputs."""
        self.running: dict[int, Request] = {}
        """By run, in the order of admission."""
        self.num_waiting_tokens = 0
        """Prompt tokens of the waiting."""
        self.tenants = TenantCounters()
        self.deadlines = Deadlines()
        self.grammars = Grammars()
        self.constrained = ConstrainedRows()
        self.transfers = Transfers()
        self.estimate = START
        """Of the output that is still to come, for the admission rule of that name."""
        self.verdicts: dict[RequestKey, tuple[int, str]] = {}
        """Of requests that ended as culprits: until when (by `now_ns`) a resume of it is answered with the sentence."""
        self.orphans: dict[RequestKey, int] = {}
        """Live requests without a tokenizer -> when they are ended (`now_ns`), earliest first."""
        self.trial = Trial()
        self.is_fresh_due = False
        """A step failed: nothing runs, and the next plan, once nothing is in flight, is a fresh one."""
        self.drain_rate = DrainRate()
        self.draft_lengths = DraftLengths(limits)
        self.last_end_ns = 0
        """When the last step ended, by the worker's clock."""
        self._choices: dict[str, dict[int, Request]] = {}
        self._last_run = 0
        self._num_come = 0

    # What can be asked

    @property
    def speculates(self) -> bool:
        """Some row may verify drafts in the next step, or does in one in flight."""
        return bool(self.limits.max_drafts or self.rows.num_with_drafts or self.rows.num_all_ahead)

    @property
    def max_in_flight(self) -> int:
        """Steps that may be in flight now."""
        return 1 if self.is_fresh_due or self.trial.is_active else self.limits.pipeline_depth

    @property
    def num_queued_room(self) -> int:
        """Requests that the queue takes now; below 0 by those that were never refused. Requests for which a row is free
        do not count as queued."""
        return self.limits.max_queued_requests + self.rows.num_free - len(self.waiting)

    @property
    def is_queue(self) -> bool:
        """Requests wait that are not just on their way to a free row."""
        return len(self.waiting) > self.rows.num_free or not self.takes_tokens(1)

    def takes_tokens(self, num_tokens: int) -> bool:
        """The queue takes a prompt of so many tokens. An empty one takes any, or a large one would wait for ever."""
        return not self.waiting or self.num_waiting_tokens + num_tokens <= self.limits.max_queued_tokens

    def retry_after_s(self, num_tokens: int) -> int:
        """When the queue may have room for a prompt of `num_tokens`, at the rate at which it drains."""
        num_requests = 1 - self.num_queued_room
        surplus = min(self.num_waiting_tokens, self.num_waiting_tokens + num_tokens - self.limits.max_queued_tokens)
        if surplus > 0:
            num_requests = max(num_requests, -(-surplus * len(self.waiting) // self.num_waiting_tokens))
        return self.drain_rate.retry_after_s(max(1, num_requests))

    def find(self, request_id: str, choice: int) -> Request | None:
        """The live request, or None."""
        return self._choices.get(request_id, {}).get(choice)

    def choices(self, request_id: str) -> list[Request]:
        """Every live choice of the request."""
        return list(self._choices.get(request_id, {}).values())

    def requests(self) -> Iterator[Request]:
        """Every live request."""
        yield from self.waiting.values()
        yield from self.paused.values()
        yield from self.running.values()

    def running_in_order(self) -> list[Request]:
        """As they are planned: by rank if the order says so, else as they were admitted."""
        order = self.policies.order
        running = list(self.running.values())
        return sorted(running, key=order.rank) if order.sorts_running else running

    def cached_blocks(self, request: Request) -> list[int]:
        """Blocks that hold the beginning of its tokens now. One that gathers log-probabilities of its prompt finds
        none, since each position must be computed."""
        if request.prompt_logprobs is not None:
            return []
        return find_prefix(self.pool, request.block_keys, request.token_ids)

    def order_view(self) -> OrderView:
        """What the order may look at."""
        return OrderView(
            now_ns=self.now_ns,
            served_tokens=self.tenants.served(self.lines.lines()) if self.limits.policy == "fair" else {},
            num_cached_tokens=lambda request: len(self.cached_blocks(request)) * self.limits.block_size,
            aging_tokens_per_s=self.limits.fair_aging_tokens_per_s,
            aging_max_tokens=self.limits.fair_aging_max_tokens,
        )

    # Moves

    def take_in(self, request: Request) -> None:
        """A request is live from now on; the caller says where it stands."""
        request_id, choice = request.key
        self._choices.setdefault(request_id, {})[choice] = request
        request.queued_ns = self.now_ns
        self.ledgers.come(request)
        self.tenants.come(request.tenant)
        self.deadlines.add(request)

    def enqueue(self, request: Request) -> None:
        """A live request waits for its turn, behind all that have come."""
        self._num_come += 1
        request.rank = (*request.rank[:2], self._num_come)
        self._wait(request, RequestState.WAITING)

    def pause(self, request: Request) -> None:
        """A session that runs or waits, or was only just taken in, waits for input."""
        self.ledgers.hold(request, WaitCause.INPUT)
        self.leaks.leave(request, "waits for input")
        if request.run is not None:
            self._leave_running(request)
        elif request.key in self.waiting:
            self._stop_waiting(request)
            request.is_preempted = False
        request.state = RequestState.WAITING_FOR_INPUT
        self.paused[request.key] = request
        self.tenants.go(request.tenant)

    def unpause(self, request: Request) -> None:
        """It has input: it is a newcomer among the waiting."""
        del self.paused[request.key]
        self.tenants.come(request.tenant)
        self.ledgers.line_up(request, is_newcomer=True)
        self.enqueue(request)

    def hold_back(self, request: Request, state: RequestState) -> None:
        """A waiting request cannot go yet: it is passed by, and keeps its rank."""
        self.ledgers.hold(request, _HELD_BACK_FOR[state])
        self.lines.remove(request)
        request.state = state

    def let_go(self, request: Request) -> None:
        """What it was held back for is there."""
        self.ledgers.line_up(request)
        request.state = RequestState.PREEMPTED if request.is_preempted else RequestState.WAITING
        self.lines.add(request)

    def start(self, request: Request) -> None:
        """A waiting request takes a row and a run that was never used before."""
        num_computed, request.num_loaded_tokens = request.num_loaded_tokens, 0
        self._leave_waiting(request)
        if request.state is RequestState.WAITING:
            self.drain_rate.leave()
        self._last_run += 1
        request.state = RequestState.RUNNING
        request.is_preempted = False
        request.enter(self.rows, self.rows.take(request, self._last_run), self._last_run, num_computed)
        assert request.row is not None
        self.draft_lengths.enter(request.row)
        self.ledgers.start(request, is_tried=self.trial.is_active)
        self.leaks.admit(request, num_computed // self.limits.block_size, self.steps.num_planned)
        self.rows.tenant[request.row] = self.tenants.index_of(request.tenant)
        self.outbox.place(request)
        self.constrained.enter(request)
        self.running[self._last_run] = request

    def preempt(self, request: Request, cause: PreemptionCause) -> None:
        """A running request loses row, run and blocks and waits again, to be computed anew.

        What its run still has in flight is dropped when it comes. Its full blocks keep their keys until they are
        taken, so often most of it is found again.
        """
        self.ledgers.preempt(request, cause, self.steps.num_planned)
        self.leaks.leave(request, f"preempted ({cause})")
        self._leave_running(request)
        request.is_preempted = True
        self._wait(request, RequestState.PREEMPTED)

    def release_blocks(self, request: Request) -> None:
        """A waiting request gives up the keys and values that were loaded for it."""
        self.leaks.unload(request, "goes on without it")
        self.pool.free(request.block_ids)
        request.block_ids = []
        request.num_loaded_tokens = 0

    def end(self, request: Request, state: RequestState) -> None:
        """A live request is finished and forgotten."""
        self.ledgers.end(request, state)
        self.leaks.leave(request, state.value)
        if request.key not in self.paused:
            self.tenants.go(request.tenant)
        if request.run is not None:
            self._leave_running(request)
        elif request.key in self.paused:
            del self.paused[request.key]
        else:
            self._stop_waiting(request)
            if not request.is_preempted:
                self.drain_rate.leave()
        self.orphans.pop(request.key, None)
        self.trial.acquit(request.key)
        request.state = state
        request_id, choice = request.key
        choices = self._choices[request_id]
        del choices[choice]
        if not choices:
            del self._choices[request_id]
        self.deadlines.remove(request, self.find)
        self.counters.num_finished += 1

    def cache_full_blocks(self, request: Request) -> None:
        """Make findable what plans made so far have filled with known tokens of a running request.

        Plans run in one order, and within a step K/V are written before they are read, so the request that finds a
        block may stand in the same plan as the one that fills it. Drafts are not known tokens.
        """
        rows, row = self.rows, request.row
        assert row is not None
        num_ready = int(min(rows.num_computed[row], rows.num_tokens[row]))
        if num_ready >= rows.next_full[row]:
            size = self.limits.block_size
            first, end = int(rows.next_full[row]) // size - 1, num_ready // size
            rows.next_full[row] = (end + 1) * size
            self.full_blocks.append((request, first, end))
        self.register_noted_blocks()

    def register_noted_blocks(self) -> None:
        """Make findable what was noted."""
        noted, self.full_blocks = self.full_blocks, []
        for request, first, end in noted:
            token_ids = request.kept_token_ids
            register_full_blocks(self.pool, request.block_keys, token_ids, request.block_ids, first, end)

    def _wait(self, request: Request, state: RequestState) -> None:
        request.state = state
        self.waiting[request.key] = request
        self.lines.add(request)
        self.num_waiting_tokens += request.num_prompt_tokens

    def _leave_waiting(self, request: Request) -> None:
        if request.key in self.lines:
            self.lines.remove(request)
        del self.waiting[request.key]
        self.num_waiting_tokens -= request.num_prompt_tokens

    def _stop_waiting(self, request: Request) -> None:
        """It waits no longer, and not because it got what it waited for."""
        self._leave_waiting(request)
        self.grammars.forget(request)
        if request.transfer is None:
            self.release_blocks(request)
        else:
            self.transfers.abandon(request)

    def _leave_running(self, request: Request) -> None:
        assert request.run is not None
        del self.running[request.run]
        self.constrained.leave(request)
        self.cache_full_blocks(request)
        self.outbox.absorb(request)
        self.pool.free(request.block_ids)
        request.leave()
