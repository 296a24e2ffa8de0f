"""The brute-force twin of the scheduler: the rules about requests, scheduling and KV, with no thought of speed.

It shares with the scheduler its limits, its messages, and nothing else. Handed the same calls it says what each plan
must be: who computes which positions, who takes a row with which blocks, who has to give them up, who ends and why.
What the rules leave open (numbers of rows and runs) it takes from the scheduler, and checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from callboard.scheduling.events import Event
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling import twin_policies as policies
from callboard.tests.scheduling.twin_events import apply, end_overdue
from callboard.tests.scheduling.twin_plan import TwinNewRow, TwinPlan, TwinRow
from callboard.tests.scheduling.twin_request import RUNNING, Key, TwinRequest
from callboard.tests.scheduling.twin_state import TwinState


class Twin:
    """`step` as the scheduler's; `note_runs` after each plan."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.state = TwinState(limits)

    def step(self, now_ns: int, events: Sequence[Event]) -> TwinPlan | None:
        """What the scheduler's plan must be."""
        state = self.state
        state.now_ns = now_ns
        for event in events:
            apply(state, event)
        end_overdue(state)
        if state.epoch is None or len(state.in_flight) >= self.limits.pipeline_depth:
            return None
        plan = TwinPlan()
        has_preempted = self._make_room()
        self._plan_running(plan)
        if not has_preempted:
            self._admit_waiting(plan)
        if not plan.rows:
            return None
        state.in_flight.append([state.live[row.key] for row in plan.rows])
        return plan

    def note_runs(self, runs: Iterable[tuple[Key, int]]) -> None:
        """The scheduler's numbers of the runs that begin with its plan."""
        for key, run in runs:
            assert run not in self.state.used_runs, f"run {run} of {key} was used before"
            self.state.used_runs.add(run)
            self.state.request_of_run[run] = self.state.live[key]

    def _shares(self, *, with_drafts: bool) -> list[tuple[TwinRequest, int, int]]:
        """Each row that computes something, its tokens, and how many of them are drafts. A token is kept for each row
        that comes behind."""
        budget = self.limits.max_num_batched_tokens
        rows = [r for r in policies.plan_order(self.limits.policy, self.state.running) if r.can_be_planned]
        shares = []
        for index, request in enumerate(rows):
            most = max(1, budget - (len(rows) - index - 1))
            most = min(most, self.limits.long_prefill_token_threshold or most, budget)
            if most == 0:
                break
            num_tokens = min(request.num_missing, most)
            num_drafts = 0
            if with_drafts and request.num_missing == 1 and not request.num_pending:
                room = request.max_total - len(request.tokens) - 1
                num_drafts = min(len(request.drafts), most - 1, room)
            shares.append((request, num_tokens + num_drafts, num_drafts))
            budget -= num_tokens + num_drafts
        return shares

    def _num_new_blocks(self, shares: list[tuple[TwinRequest, int, int]]) -> int:
        needed = [self.state.pool.blocks_for(r.num_computed + num_tokens) for r, num_tokens, _ in shares]
        return sum(max(0, n - len(r.blocks)) for n, (r, _, _) in zip(needed, shares, strict=True))

    def _make_room(self) -> bool:
        """Take blocks from the running until what the rest needs is there; True if somebody lost his."""
        state = self.state
        num_before = state.num_preemptions
        while self._num_new_blocks(self._final_shares()) > len(state.pool.free):
            state.preempt(
                policies.victim(self.limits.preemption, policies.plan_order(self.limits.policy, state.running))
            )
            state.num_preemptions += 1
        return state.num_preemptions > num_before

    def _final_shares(self) -> list[tuple[TwinRequest, int, int]]:
        """Drafts only if there are blocks for all of them."""
        shares = self._shares(with_drafts=True)
        if self._num_new_blocks(shares) > len(self.state.pool.free):
            shares = self._shares(with_drafts=False)
        return shares

    def _plan_running(self, plan: TwinPlan) -> None:
        pool = self.state.pool
        for request, num_tokens, num_drafts in self._final_shares():
            num_blocks = pool.blocks_for(request.num_computed + num_tokens)
            grown = pool.take(max(0, num_blocks - len(request.blocks)))
            request.blocks = request.blocks + grown
            plan.grown += [(request.key, block) for block in grown]
            self._run(plan, request, num_tokens, num_drafts)

    def _run(self, plan: TwinPlan, request: TwinRequest, num_tokens: int, num_drafts: int = 0) -> None:
        samples = num_tokens - num_drafts == request.num_missing
        drafts = tuple(request.drafts[:num_drafts])
        plan.rows.append(TwinRow(request.key, request.num_computed, num_tokens, samples, drafts))
        request.num_computed += num_tokens
        request.num_pending += samples
        request.num_drafts_in_flight = num_drafts
        request.drafts = []
        self.state.label_blocks(request)

    def _admit_waiting(self, plan: TwinPlan) -> None:
        """One after the other, until budget, rows, blocks or the message's room are used up."""
        state = self.state
        while state.num_free_rows:
            budget = self.limits.max_num_batched_tokens - sum(row.num_tokens for row in plan.rows)
            request = policies.next_to_admit(self.limits.policy, state.could_go())
            if request is None or not budget or not self._fits_in_message(plan, request):
                return
            num_tokens = self._take_first_blocks(request, budget)
            if not num_tokens:
                return
            if request.num_cached_tokens is None:
                request.num_cached_tokens = min(request.num_computed, request.num_prompt_tokens)
                state.num_admitted += 1
                state.num_prompt_tokens += request.num_prompt_tokens
            request.state = RUNNING
            state.running.append(request)
            plan.new_rows.append(TwinNewRow(request.key, request.attempt, tuple(request.tokens), tuple(request.blocks)))
            self._run(plan, request, num_tokens)

    def _fits_in_message(self, plan: TwinPlan, request: TwinRequest) -> bool:
        """The first new row always may go."""
        others = [self.state.live[new.key] for new in plan.new_rows]
        return not others or sum(r.num_plan_tokens for r in [*others, request]) <= self.limits.plan_tokens

    def _take_first_blocks(self, request: TwinRequest, budget: int) -> int:
        """The cached prefix and the first chunk, whose length this is; 0: it does not fit, and has nothing."""
        pool, limits = self.state.pool, self.limits
        found = [] if request.gathers else pool.find(request.tokens, request.admit.cache_salt)
        num_cached = len(found) * limits.block_size
        num_tokens = min(len(request.tokens) - num_cached, limits.long_prefill_token_threshold or budget, budget)
        num_wanted = policies.blocks_wanted(limits, pool, request, num_cached, num_tokens)
        num_kept = int(limits.watermark * limits.num_blocks) if self.state.running else 0
        if len([b for b in pool.free if b not in found]) - num_wanted < num_kept:
            return 0
        pool.share(found)
        request.blocks = found + pool.take(pool.blocks_for(num_cached + num_tokens) - len(found))
        request.num_computed = num_cached
        request.num_labelled = len(found)
        if limits.prefix_caching and not request.gathers:
            self.state.num_asked_tokens += len(request.tokens)
            self.state.num_hit_tokens += num_cached
        return num_tokens
