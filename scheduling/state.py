"""The scheduler's state, and the few moves on it that keep its parts in step with one another."""

from __future__ import annotations

from collections.abc import Iterator

from ..kv_cache.block_pool import BlockPool
from ..kv_cache.prefix_cache import register_full_blocks
from .deltas import Outbox
from .drain_rate import DrainRate
from .limits import SchedulerLimits
from .policy import make_policy
from .request import Request, RequestKey, RequestState
from .rows import RowSlots
from .step_log import StepLog
from .trial import Trial


class Counters:
    """Counts since the start; meanings as in `SchedulerStatistics`."""

    def __init__(self) -> None:
        self.num_preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.num_finished = 0
        self.num_leaks = 0
        self.num_failed_steps = 0
        self.num_resumed = 0
        self.num_orphans_ended = 0
        self.num_poisoned = 0
        self.num_admitted = 0
        self.queue_time_ns = 0
        self.num_prefilled = 0
        self.prefill_time_ns = 0
        self.num_scheduled_tokens = 0


class SchedulerState:
    """Every live request is either in `waiting` or in `running`, never in both; `policy` knows the order of both."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.now_ns = 0
        """Of the last call of the scheduler's `step`."""
        self.pool = BlockPool(limits.num_blocks, limits.block_size, limits.prefix_caching)
        self.rows = RowSlots(limits.max_num_seqs)
        self.steps = StepLog()
        self.outbox = Outbox()
        self.counters = Counters()
        self.policy = make_policy(limits.policy)
        self.waiting: dict[RequestKey, Request] = {}
        self.num_waiting_tokens = 0
        """Prompt tokens of the waiting."""
        self.running: dict[int, Request] = {}
        """By run, in the order of admission."""
        self.verdicts: dict[RequestKey, tuple[int, str]] = {}
        """Of requests that ended as culprits: until when (by `now_ns`) a resume of it is answered with the sentence."""
        self.orphans: dict[RequestKey, int] = {}
        """Live requests without a tokenizer -> when they are ended (`now_ns`), earliest first."""
        self.trial = Trial()
        self.is_fresh_due = False
        """A step failed: nothing runs, and the next plan, once nothing is in flight, is a fresh one."""
        self.drain_rate = DrainRate()
        self._choices: dict[str, dict[int, Request]] = {}
        self._last_run = 0
        self._num_come = 0

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
        yield from self.running.values()

    def enqueue(self, request: Request) -> None:
        """A new request waits for its turn."""
        request_id, choice = request.key
        self._choices.setdefault(request_id, {})[choice] = request
        self._num_come += 1
        request.rank = (*request.rank[:2], self._num_come)
        request.queued_ns = self.now_ns
        self.policy.add(request)
        self.waiting[request.key] = request
        self.num_waiting_tokens += request.num_prompt_tokens

    def start(self, request: Request) -> None:
        """A waiting request takes a row and a run that was never used before."""
        self._leave_waiting(request)
        if request.state is RequestState.WAITING:
            self.drain_rate.leave()
        self._last_run += 1
        request.run = self._last_run
        request.row = self.rows.take()
        request.state = RequestState.RUNNING
        self.running[request.run] = request

    def preempt(self, request: Request) -> None:
        """A running request loses row, run and blocks and waits again, to be computed anew.

        What its run still has in flight is dropped when it comes. Its full blocks keep their keys until they are
        taken, so often most of it is found again.
        """
        self._leave_running(request)
        request.state = RequestState.PREEMPTED
        self.policy.put_back(request)
        self.waiting[request.key] = request
        self.num_waiting_tokens += request.num_prompt_tokens

    def end(self, request: Request, state: RequestState) -> None:
        """A live request is finished and forgotten."""
        if request.run is not None:
            self._leave_running(request)
        else:
            self._leave_waiting(request)
            if request.state is RequestState.WAITING:
                self.drain_rate.leave()
        self.orphans.pop(request.key, None)
        self.trial.acquit(request.key)
        request.state = state
        request_id, choice = request.key
        choices = self._choices[request_id]
        del choices[choice]
        if not choices:
            del self._choices[request_id]
        self.counters.num_finished += 1

    def cache_full_blocks(self, request: Request) -> None:
        """Make findable what plans made so far have filled with known tokens.

        Plans run in one order, and within a step K/V are written before they are read, so the request that finds a
        block may stand in the same plan as the one that fills it.
        """
        num_full = min(request.num_computed_tokens, request.num_tokens) // self.limits.block_size
        if num_full > request.num_registered_blocks:
            request.num_registered_blocks = register_full_blocks(
                self.pool,
                request.block_keys,
                request.token_ids,
                request.block_ids,
                request.num_registered_blocks,
                num_full,
            )

    def _leave_waiting(self, request: Request) -> None:
        self.policy.remove(request)
        del self.waiting[request.key]
        self.num_waiting_tokens -= request.num_prompt_tokens

    def _leave_running(self, request: Request) -> None:
        assert request.run is not None and request.row is not None
        del self.running[request.run]
        self.rows.give_back(request.row)
        self.pool.free(request.block_ids)
        request.run = request.row = None
        request.block_ids = []
        request.forget_computed()
