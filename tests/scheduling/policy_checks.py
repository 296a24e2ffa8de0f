"""Brute force over one call of the scheduler: whose turn it was, and who had to give its blocks up."""

from __future__ import annotations

from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.request import Request, RequestState
from callboard.scheduling.scheduler import Scheduler


class PolicyCheck:
    """Looks at the scheduler before a call of `step`, and after it with `see`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._runs = {request.key: run for run, request in scheduler._state.running.items()}
        self._num_preemptions = scheduler.statistics().num_preemptions

    def see(self, plan: StepPlan | None) -> None:
        """`plan`: what the call returned."""
        state = self._scheduler._state
        num_preempted = self._scheduler.statistics().num_preemptions - self._num_preemptions
        if num_preempted:
            preempted = [r for r in state.waiting.values() if r.state is RequestState.PREEMPTED and r.key in self._runs]
            assert len(preempted) == num_preempted, "a request is preempted once in a plan"
            self._check_victims(preempted, list(state.running.values()))
        if plan is None or state.trial.is_active:
            return
        assert not (num_preempted and plan.new_rows), "somebody is admitted in a step that preempts"
        for new in plan.new_rows:
            request = state.running[new.run]
            for other in state.lines:
                self._check_turn(request, other)

    def _check_victims(self, preempted: list[Request], running: list[Request]) -> None:
        """The first in plan order stays, and all that still run have a better claim than each that went."""
        limits = self._scheduler.limits
        first = min([*preempted, *running], key=self._place)
        assert first not in preempted, f"{first.key} goes though it is the first"
        for request in running:
            if request is first and limits.preemption != "lifo":
                continue  # it is spared whatever its claim is
            for victim in preempted:
                if limits.preemption == "lifo":
                    is_right = self._place(request) < self._place(victim)
                elif limits.preemption == "retract":
                    is_right = retract_claim(request) <= retract_claim(victim)
                else:
                    is_right = request.rank[0] <= victim.rank[0]
                assert is_right, f"{victim.key} goes and {request.key} stays"

    def _place(self, request: Request) -> tuple[int, ...]:
        """In the order of the plan."""
        return request.rank if self._scheduler.limits.policy == "priority" else (self._runs[request.key],)

    def _check_turn(self, admitted: Request, waiting: Request) -> None:
        """`waiting` could have gone. Of other tenants, and of what was cached, nothing is known afterwards."""
        policy = self._scheduler.limits.policy
        if policy == "priority":
            assert claim(admitted) <= claim(waiting), f"{admitted.key} is admitted before {waiting.key}"
            return
        if policy == "fair" and admitted.tenant != waiting.tenant:
            return
        if admitted.first_row_ns == self._scheduler._state.now_ns:
            assert waiting.state is RequestState.WAITING, f"{admitted.key} is admitted before a preempted one"
            if policy != "cache_aware":
                assert admitted.rank[2] < waiting.rank[2], f"{admitted.key} overtakes {waiting.key}"


def claim(request: Request) -> tuple[int, int]:
    """The lower, the more urgent; of equals those that came first, which the tests of the policy look at."""
    return request.rank[:2]


def retract_claim(request: Request) -> tuple[int, int, int]:
    """The lower, the longer it stays: urgent ones, then those that have written more, then short prompts."""
    return (request.rank[0], request.num_prompt_tokens - request.num_tokens, request.num_prompt_tokens)
