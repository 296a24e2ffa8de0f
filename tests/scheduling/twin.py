"""The brute-force twin of the scheduler: the rules about requests, scheduling and KV, with no thought of speed.

It shares with the scheduler its limits, its messages, and nothing else. Handed the same calls it says what each plan
must be: who computes which positions, who takes a row with which blocks, who has to give them up, who ends and why.
What the rules leave open (numbers of rows and runs) it takes from the scheduler, and checks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from callboard.mailbox.messages.transfers import LoadBlocks
from callboard.scheduling.events import Event
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling import twin_policies as policies
from callboard.tests.scheduling.twin_events import apply, deadline_of, end_overdue
from callboard.tests.scheduling.twin_plan import TwinNewRow, TwinPlan, TwinRow
from callboard.tests.scheduling.twin_request import FOR_REMOTE_KV, RUNNING, Key, TwinRequest
from callboard.tests.scheduling.twin_state import TwinLoad, TwinState


class Twin:
    """`step` as the scheduler's; `note_runs` after each plan, `note_loads` after each `collect`."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.state = TwinState(limits)
        self.used_transfers: set[int] = set()

    def step(self, now_ns: int, events: Sequence[Event]) -> TwinPlan | None:
        """What the scheduler's plan must be."""
        state = self.state
        state.now_ns = now_ns
        for event in events:
            apply(state, event)
        end_overdue(state)
        if state.epoch is None or len(state.in_flight) >= state.max_in_flight:
            return None
        plan = TwinPlan()
        is_room, is_short, guesses = self._is_room_made()
        if is_room:
            self._plan_running(plan, guesses=guesses)
        for request in state.running:
            state.label_blocks(request)
        if not is_short:
            self._admit_waiting(plan)
        if not plan.rows and state.groups and self._has_released_idle():
            self._admit_waiting(plan)
        if not plan.rows:
            return None
        plan.is_fresh, state.is_fresh_due = state.is_fresh_due, False
        state.share = policies.share_after_step(state.share)
        state.num_planned += 1
        state.in_flight.append([state.live[row.key] for row in plan.rows])
        return plan

    def note_runs(self, runs: Iterable[tuple[Key, int]]) -> None:
        """The scheduler's numbers of the runs that begin with its plan."""
        for key, run in runs:
            assert run not in self.state.used_runs, f"run {run} of {key} was used before"
            self.state.used_runs.add(run)
            self.state.request_of_run[run] = self.state.live[key]

    def note_loads(self, loads: Sequence[LoadBlocks]) -> None:
        """The scheduler's numbers of the transfers that begin, which must be those of the twin that may begin now."""
        num_ended = self.state.num_planned - len(self.state.in_flight)
        begun = [load for load in self.state.new_loads if load.num_steps <= num_ended]
        self.state.new_loads = [load for load in self.state.new_loads if load.num_steps > num_ended]
        got = [(load.request_id, load.choice, load.num_tokens, load.block_ids) for load in loads]
        assert got == [(*load.key, load.num_tokens, load.blocks) for load in begun], f"{got} are to be loaded"
        for message, load in zip(loads, begun, strict=True):
            assert message.transfer not in self.used_transfers, f"transfer {message.transfer} was used before"
            self.used_transfers.add(message.transfer)
            self.state.loads[message.transfer] = load

    def note_told(self, blocked: Container[str]) -> None:
        """Tokenizers that are not blocked have taken everything."""
        for request in self.state.live.values():
            request.has_unsent_pause &= request.tokenizer in blocked

    def next_deadline_ns(self) -> float:
        """When something ends by itself."""
        live = self.state.live.values()
        return min((*map(deadline_of, live), *(r.orphan[0] for r in live if r.orphan)), default=float("inf"))

    # Rows that run

    def _has_place(self, request: TwinRequest) -> bool:
        """Blocks are short: a row that needs one only because it may stand further waits for its results."""
        ahead = sum(request.allowances)
        last = min(request.num_computed + ahead + 1, request.last_place)
        return not ahead or self.state.pool.blocks_for(last) <= len(request.blocks)

    def _end_of(self, request: TwinRequest, num_tokens: int) -> int:
        """Behind the last position that it may compute."""
        if not request.allowances:
            return request.num_computed + num_tokens
        return min(request.num_computed + sum(request.allowances) + num_tokens, request.last_place)

    def _shares(self, *, guesses: bool) -> list[tuple[TwinRequest, int, int]]:
        """Each row that computes something, its tokens, and how many of them are drafts. A token is kept for each row
        that comes behind."""
        budget = self.limits.max_num_batched_tokens
        rows = [request for request in policies.plan_order(self.state) if request.can_be_planned]
        if not guesses:
            rows = [request for request in rows if self._has_place(request)]
        if self.state.groups:
            rows = [request for request in rows if request.key in self.state.groups[0]]
        shares = []
        for index, request in enumerate(rows):
            most = max(1, budget - (len(rows) - index - 1))
            most = min(most, self.limits.long_prefill_token_threshold or most, budget)
            if most == 0:
                break
            num_drafts = request.num_guesses if guesses else 0
            num_tokens = min(request.num_missing + len(request.drafts) + num_drafts, most)
            shares.append((request, num_tokens, max(0, num_tokens - request.num_missing)))
            budget -= num_tokens
        return shares

    def _num_new_blocks(self, *, guesses: bool) -> int:
        """Blocks that the rows lack for what they would compute."""
        pool = self.state.pool
        return sum(
            max(0, pool.blocks_for(self._end_of(request, num_tokens)) - len(request.blocks))
            for request, num_tokens, _ in self._shares(guesses=guesses)
        )

    def _is_room_made(self) -> tuple[bool, bool, bool]:
        """Drafts are given up, then blocks are taken from the running until what the others need is there, then from
        what was loaded for those that wait. Whether there is room now, whether blocks were short, and whether there may
        be guesses."""
        state, is_short, guesses = self.state, False, True
        while self._num_new_blocks(guesses=guesses) > len(state.pool.free):
            if guesses:
                guesses = False
                for request in state.running:
                    request.drafts = []
                continue
            is_short = True
            if len(state.running) > 1:
                self._preempt(policies.victim(state))
            elif not self._has_dropped_loaded(None):
                return False, True, False  # what is being loaded for others must come first
        return True, is_short, guesses

    def _preempt(self, victim: TwinRequest) -> None:
        state = self.state
        state.preempt(victim)
        state.num_preemptions += 1
        victim.num_preemptions += 1
        if self.limits.admission == "estimate":
            state.share = policies.share_after_retract(state)

    def _plan_running(self, plan: TwinPlan, *, guesses: bool) -> None:
        pool = self.state.pool
        for request, num_tokens, num_drafts in self._shares(guesses=guesses):
            num_blocks = pool.blocks_for(self._end_of(request, num_tokens))
            grown = pool.take(max(0, num_blocks - len(request.blocks)))
            request.blocks = request.blocks + grown
            plan.grown += [(request.key, block) for block in grown]
            self._run(plan, request, num_tokens, num_drafts, is_new=False)

    def _run(
        self, plan: TwinPlan, request: TwinRequest, num_tokens: int, num_drafts: int = 0, *, is_new: bool = True
    ) -> None:
        samples = num_tokens - num_drafts == request.num_missing
        drafts = tuple(request.drafts[:num_drafts])
        if not self.limits.max_drafts:
            plan.rows.append(TwinRow(request.key, request.num_computed, num_tokens, samples, drafts))
            request.num_drafts_in_flight = num_drafts
        elif (
            num_drafts
            or sum(request.allowances)
            or (not is_new and samples and num_tokens == 1 and self._is_unsure(request))
        ):
            end = min(len(request.blocks) * self.limits.block_size, request.last_place)
            plan.rows.append(TwinRow(request.key, request.num_computed, 1, samples, (), num_drafts, end))
            plan.num_guesses += num_drafts
        else:
            plan.rows.append(TwinRow(request.key, request.num_computed, num_tokens, samples))
        if samples:
            request.allowances.append(num_drafts if self.limits.max_drafts else 0)
        request.num_computed += num_tokens - num_drafts
        request.num_pending += samples
        request.drafts = []

    def _is_unsure(self, request: TwinRequest) -> bool:
        """A step before this one may find no mask, and leave the row where it was; this one then does its work."""
        return self.limits.has_constrained_drafts and bool(request.admit.grammar_key)

    # Rows that are new

    def _admit_waiting(self, plan: TwinPlan) -> None:
        """One after the other, until budget, rows, blocks or the message's room are used up."""
        state = self.state
        while state.num_free_rows:
            budget = self.limits.max_num_batched_tokens - sum(row.num_tokens for row in plan.rows) - plan.num_guesses
            request = policies.next_to_admit(state)
            if request is None or not budget or not self._fits_in_message(plan, request):
                return
            if (num_loadable := self._num_loadable(request)) > 0:
                if not self._has_room(request, 0, num_loadable, []):
                    if not state.running and self._has_dropped_loaded(request):
                        continue
                    return
                self._begin_loading(request, num_loadable)
                continue
            num_tokens = self._take_first_blocks(request, budget)
            if not num_tokens:
                if not state.running and self._has_dropped_loaded(request):
                    continue
                return
            self._start(request)
            plan.new_rows.append(TwinNewRow(request.key, request.attempt, tuple(request.tokens), tuple(request.blocks)))
            self._run(plan, request, num_tokens)
            state.label_blocks(request)

    def _has_dropped_loaded(self, spared: TwinRequest | None) -> bool:
        """Who waits last of those with loaded blocks gives them up."""
        loaded = [request for request in self.state.waiting() if request.blocks and request is not spared]
        if loaded:
            self.state.drop_loaded(loaded[-1])
        return bool(loaded)

    def _has_released_idle(self) -> bool:
        """Those that are not tried now give up their rows."""
        idle = [request for request in self.state.running if request.key not in self.state.groups[0]]
        for request in reversed(idle):
            self.state.preempt(request)
        return bool(idle)

    def _fits_in_message(self, plan: TwinPlan, request: TwinRequest) -> bool:
        """The first new row always may go."""
        others = [self.state.live[new.key] for new in plan.new_rows]
        return not others or sum(r.num_plan_tokens for r in [*others, request]) <= self.limits.plan_tokens

    def _num_loadable(self, request: TwinRequest) -> int:
        """Tokens, in whole blocks, that are better loaded than found or computed; one must be left to compute."""
        size = self.limits.block_size
        num_loadable = min(request.num_remote_tokens, len(request.tokens) - 1) // size * size
        num_here = max(len(self.state.cached_blocks(request)) * size, request.num_loaded)
        return 0 if request.gathers or num_loadable <= num_here else num_loadable

    def _begin_loading(self, request: TwinRequest, num_tokens: int) -> None:
        """Into blocks of the transfer's own; it is tried once."""
        state = self.state
        request.num_remote_tokens = 0
        request.state = FOR_REMOTE_KV
        blocks = state.pool.take(state.pool.blocks_for(num_tokens))
        state.new_loads.append(TwinLoad(request, num_tokens, blocks, state.num_planned))

    def _has_room(self, request: TwinRequest, num_cached: int, num_tokens: int, found: list[int]) -> bool:
        """The pool has what the admission rule wants, and keeps the watermark's share while something runs."""
        num_wanted = policies.blocks_wanted(self.state, request, num_cached, num_tokens)
        num_kept = int(self.limits.watermark * self.limits.num_blocks) if self.state.running else 0
        return len([block for block in self.state.pool.free if block not in found]) - num_wanted >= num_kept

    def _take_first_blocks(self, request: TwinRequest, budget: int) -> int:
        """What was loaded, or the cached prefix, and the first chunk, whose length this is; 0: it does not fit."""
        state, limits = self.state, self.limits
        pool, held = state.pool, request.blocks
        found = [] if held else state.cached_blocks(request)
        num_cached = len(held + found) * limits.block_size
        num_tokens = min(len(request.tokens) - num_cached, limits.long_prefill_token_threshold or budget, budget)
        if not self._has_room(request, num_cached, num_tokens, found):
            return 0
        pool.share(found)
        num_new = pool.blocks_for(num_cached + num_tokens) - len(held + found)
        request.blocks = held + found + pool.take(num_new)
        request.num_computed = num_cached
        request.num_labelled = len(held + found)
        if limits.prefix_caching and not request.gathers:
            state.num_asked_tokens += len(request.tokens)
            state.num_hit_tokens += num_cached
        return num_tokens

    def _start(self, request: TwinRequest) -> None:
        state = self.state
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(request.num_computed, request.num_prompt_tokens)
            state.num_admitted += 1
            num_new = request.num_prompt_tokens - request.num_counted
            state.num_prompt_tokens += num_new
            state.served[request.admit.tenant] += num_new
        request.state = RUNNING
        request.was_preempted = False
        request.num_loaded = 0
        state.running.append(request)
