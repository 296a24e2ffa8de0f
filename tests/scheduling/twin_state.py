"""What the twin keeps, and the few moves that a request makes."""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from typing import NamedTuple

from callboard.mailbox.messages.admission import Admit
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.twin_pool import TwinPool
from callboard.tests.scheduling.twin_request import (
    FOR_INPUT,
    FOR_REMOTE_KV,
    PREEMPTED,
    RUNNING,
    WAITING,
    Key,
    TwinEnd,
    TwinRequest,
)


class TwinLoad:
    """A transfer under way; its blocks are its own, whatever becomes of the request."""

    def __init__(self, request: TwinRequest, num_tokens: int, blocks: list[int], num_steps: int) -> None:
        self.request: TwinRequest | None = request
        self.key, self.num_tokens, self.blocks = request.key, num_tokens, blocks
        self.num_steps = num_steps
        """Planned before it: until they have ended, rows that are over may still write to its blocks."""


class Told(NamedTuple):
    """What a client is told at the end, or at the end of a turn."""

    end: TwinEnd
    num_output_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int


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
        self.num_planned = 0
        self.is_fresh_due = False
        """A step failed: the next plan is a fresh one, when nothing is in flight."""
        self.groups: list[list[Key]] = []
        """Suspects: only the first group runs."""
        self.verdicts: dict[Key, int] = {}
        """Of those to blame: until when (ns) they are not tried again."""
        self.epoch: int | None = None
        self.num_come = self.num_waits = 0
        self.grammars: dict[str, int | None] = {}
        """Of those that are known: the status that their requests end with; None: they are good."""
        self.unlucky: set[str] = set()
        """Ids of requests that end where they need their grammar, for the engine could not compile it."""
        self.new_loads: list[TwinLoad] = []
        self.loads: dict[int, TwinLoad] = {}
        """By the number that the scheduler gave it."""
        self.served: dict[str, int] = {}
        """Tokens by tenant."""
        self.share = Fraction(7, 10)
        """Of the output that may still come, what is reckoned with."""
        self.turns: dict[tuple[Key, int], Admit] = {}
        """Turns of sessions, by their prompt's length, each as a request of its own."""
        self.ends: dict[Key, tuple[Told, int, list[int]]] = {}
        """Of what was ended here: its end, output tokens that it came with, the others."""
        self.pauses: dict[Key, list[Told]] = {}
        self.refused: dict[Key, str] = {}
        """Code of the refusal."""
        self.num_preemptions = self.num_finished = self.num_admitted = self.num_timed_out = 0
        self.num_asked_tokens = self.num_hit_tokens = self.num_prompt_tokens = self.num_generated_tokens = 0
        self.num_drafts = self.num_accepted = 0
        self.num_late = 0

    # What can be asked

    def waiting(self) -> list[TwinRequest]:
        """All that are live and do not run, but for sessions that wait for their client; who waits longest first."""
        waiting = [r for r in self.live.values() if r.state not in (RUNNING, FOR_INPUT)]
        return sorted(waiting, key=lambda request: request.waits_since)

    def could_go(self) -> list[TwinRequest]:
        """Those of the waiting that wait for nothing but their turn."""
        return [r for r in self.live.values() if r.state in (WAITING, PREEMPTED)]

    def cached_blocks(self, request: TwinRequest) -> list[int]:
        """Blocks that its tokens begin with, if it may use any."""
        return [] if request.gathers else self.pool.find(request.tokens, request.admit.cache_salt)

    @property
    def max_in_flight(self) -> int:
        return 1 if self.is_fresh_due or self.groups else self.limits.pipeline_depth

    @property
    def num_free_rows(self) -> int:
        return self.limits.max_num_seqs - len(self.running)

    # Moves

    def take_in(self, request: TwinRequest) -> None:
        """It is live."""
        self.come(request.admit.tenant)
        request.queued_ns = self.now_ns
        self.live[request.key] = request

    def come(self, tenant: str) -> None:
        """A tenant that comes back is lifted to the lowest of those that are there: paused sessions are not."""
        tenants = {other.admit.tenant for other in self.live.values() if other.state != FOR_INPUT}
        if tenant not in tenants:
            lowest = min((self.served[other] for other in tenants), default=0)
            self.served[tenant] = max(self.served.get(tenant, 0), lowest)

    def enqueue(self, request: TwinRequest) -> None:
        """It comes behind all that are there."""
        self.num_come += 1
        request.order = self.num_come
        self.wait(request, WAITING)

    def wait(self, request: TwinRequest, state: str) -> None:
        self.num_waits += 1
        request.waits_since = self.num_waits
        request.state = state

    def let_go(self, request: TwinRequest) -> None:
        """It can go again, where it stood."""
        request.state = PREEMPTED if request.was_preempted else WAITING

    def leave_row(self, request: TwinRequest) -> None:
        """Row, run and blocks are given up."""
        self.label_blocks(request)
        self.running.remove(request)
        self.request_of_run = {run: r for run, r in self.request_of_run.items() if r is not request}
        self.pool.give_back(request.blocks)
        request.lose_everything()

    def preempt(self, request: TwinRequest) -> None:
        self.leave_row(request)
        request.was_preempted = True
        self.wait(request, PREEMPTED)

    def pause(self, request: TwinRequest) -> None:
        """A session waits for its client."""
        if request.state == RUNNING:
            self.leave_row(request)
        elif request.state == FOR_REMOTE_KV:
            self.abandon_load(request)
        else:
            self.drop_loaded(request)
        request.was_preempted = False
        self.wait(request, FOR_INPUT)

    def drop_loaded(self, request: TwinRequest) -> None:
        """What was loaded for a waiting request is given up."""
        self.pool.give_back(request.blocks)
        request.lose_everything()

    def forget(self, request: TwinRequest) -> None:
        """It is live no longer; a transfer keeps its blocks."""
        if request.state == RUNNING:
            self.leave_row(request)
        elif request.state == FOR_REMOTE_KV:
            self.abandon_load(request)
        else:
            self.drop_loaded(request)
        del self.live[request.key]
        self.groups = [rest for group in self.groups if (rest := [key for key in group if key != request.key])]
        self.num_finished += 1

    def abandon_load(self, request: TwinRequest) -> None:
        """Nobody waits for it any more."""
        for load in [*self.loads.values(), *self.new_loads]:
            if load.request is request:
                load.request = None

    def told(self, request: TwinRequest, end: TwinEnd) -> Told:
        """Of the turn that it is in."""
        return Told(end, len(request.turn_output), request.num_prompt_tokens, request.num_cached_tokens or 0)

    def end(self, request: TwinRequest, end: TwinEnd) -> None:
        """It is over, and its client is told so."""
        self.ends[request.key] = (self.told(request, end), request.num_come_with, request.output)
        self.forget(request)

    def label_blocks(self, request: TwinRequest) -> None:
        """Blocks that have become full of known tokens, which plans cover, can be found; each is looked at once."""
        size = self.limits.block_size
        for index in range(request.num_labelled, min(request.num_computed, len(request.tokens)) // size):
            self.pool.label(request.blocks[index], request.tokens[: (index + 1) * size], request.admit.cache_salt)
            request.num_labelled = index + 1
