"""What the twin keeps, and the few moves that a request makes."""

from __future__ import annotations

from collections import deque

from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.twin_pool import TwinPool
from callboard.tests.scheduling.twin_request import FOR_INPUT, PREEMPTED, RUNNING, WAITING, Key, TwinEnd, TwinRequest


class TwinLoad:
    """A transfer under way; its blocks are its own, whatever becomes of the request."""

    def __init__(self, number: int, request: TwinRequest, num_tokens: int) -> None:
        self.number, self.request, self.num_tokens = number, request, num_tokens
        self.blocks = request.blocks


class TwinState:
    """Live requests; those that run in the order of their admission."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.now_ns = 0
        self.pool = TwinPool(limits.num_blocks, limits.block_size, limits.prefix_caching)
        self.live: dict[Key, TwinRequest] = {}
        self.running: list[TwinRequest] = []
        self.request_of_run: dict[int, TwinRequest] = {}
        """Runs as the scheduler numbers them, of what runs now."""
        self.used_runs: set[int] = set()
        self.in_flight: deque[list[TwinRequest]] = deque()
        """Requests of the plans without a result, oldest plan first."""
        self.epoch: int | None = None
        self.num_come = 0
        self.grammars: dict[str, str | None] = {}
        """Known ones: None if ready, else the sentence."""
        self.loads: dict[int, TwinLoad] = {}
        self.ends: dict[Key, tuple[int, TwinEnd, list[int], int]] = {}
        """Of what was ended here: attempt, how, output, cached tokens."""
        self.refused: dict[Key, str] = {}
        """Code of the refusal."""
        self.num_preemptions = self.num_finished = self.num_admitted = 0
        self.num_asked_tokens = self.num_hit_tokens = self.num_prompt_tokens = self.num_generated_tokens = 0

    def waiting(self) -> list[TwinRequest]:
        """All that are live and do not run, but for sessions that wait for their client."""
        return [r for r in self.live.values() if r.state not in (RUNNING, FOR_INPUT)]

    def could_go(self) -> list[TwinRequest]:
        """Those of the waiting that wait for nothing but their turn."""
        return [r for r in self.live.values() if r.state in (WAITING, PREEMPTED)]

    @property
    def num_free_rows(self) -> int:
        return self.limits.max_num_seqs - len(self.running)

    def enqueue(self, request: TwinRequest, state: str) -> None:
        """It comes behind all that are there."""
        self.num_come += 1
        request.order = self.num_come
        request.state = state
        self.live[request.key] = request

    def leave_row(self, request: TwinRequest) -> None:
        """Row, run and blocks are given up."""
        self.running.remove(request)
        self.request_of_run = {run: r for run, r in self.request_of_run.items() if r is not request}
        self.pool.give_back(request.blocks)
        request.lose_everything()

    def preempt(self, request: TwinRequest) -> None:
        self.leave_row(request)
        request.state = PREEMPTED

    def forget(self, request: TwinRequest) -> None:
        """It is live no longer; a transfer keeps its blocks."""
        if request.state == RUNNING:
            self.leave_row(request)
        elif request.transfer is None:
            self.pool.give_back(request.blocks)
            request.lose_everything()
        del self.live[request.key]
        self.num_finished += 1

    def end(self, request: TwinRequest, end: TwinEnd) -> None:
        """It is over, and its client is told so."""
        output = request.tokens[request.num_prompt_tokens :]
        self.ends[request.key] = (request.attempt, end, output, request.num_cached_tokens or 0)
        self.forget(request)

    def label_blocks(self, request: TwinRequest) -> None:
        """Blocks that have become full of known tokens, which plans cover, can be found; each is looked at once."""
        size = self.limits.block_size
        for index in range(request.num_labelled, min(request.num_computed, len(request.tokens)) // size):
            self.pool.label(request.blocks[index], request.tokens[: (index + 1) * size], request.admit.cache_salt)
            request.num_labelled = index + 1
