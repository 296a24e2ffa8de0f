"""A scheduler, and beside it one that was restored from a snapshot of it: every call goes to both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import msgspec

from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.deltas import Outgoing
from callboard.scheduling.events import Event
from callboard.scheduling.leak_ledger import Leak
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.deep_compare import differences


class RestoredBeside:
    """Stands in for a scheduler. `seen`: what the states had in them at their snapshots."""

    def __init__(self, scheduler: Scheduler, seen: Counter[str] | None = None) -> None:
        self._scheduler = scheduler
        self.seen: Counter[str] = Counter() if seen is None else seen
        self.restored = self._restore()

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    @property
    def has_news(self) -> bool:
        """There is something in the state that no snapshot had yet."""
        return any(has and not self.seen[name] for name, has in contents_of(self._scheduler).items())

    def renew(self) -> None:
        """Compare both, attribute by attribute, and go on with one that is restored now."""
        self.check()
        self.restored = self._restore()

    def check(self) -> None:
        assert list(differences(parts(self._scheduler), parts(self.restored))) == []

    def _restore(self) -> Scheduler:
        data = self._scheduler.snapshot()
        assert self._scheduler.snapshot() == data
        restored = Scheduler.restore(self._scheduler.limits, data)
        assert list(differences(parts(self._scheduler), parts(restored))) == []
        self.seen.update(contents_of(self._scheduler))
        return restored

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        plan, plan_there = self._scheduler.step(now_ns, events), self.restored.step(now_ns, events)
        assert msgspec.msgpack.encode(plan) == msgspec.msgpack.encode(plan_there)
        return plan

    def collect(self, blocked: Container[str] = ()) -> Outgoing:
        outgoing, outgoing_there = self._scheduler.collect(blocked), self.restored.collect(blocked)
        assert msgspec.msgpack.encode(outgoing) == msgspec.msgpack.encode(outgoing_there)
        return outgoing

    def check_integrity(self) -> list[Leak]:
        leaks, leaks_there = self._scheduler.check_integrity(), self.restored.check_integrity()
        assert leaks == leaks_there
        return leaks

    def next_deadline_ns(self) -> int | None:
        deadline_ns = self._scheduler.next_deadline_ns()
        assert deadline_ns == self.restored.next_deadline_ns()
        return deadline_ns


def parts(scheduler: Scheduler) -> dict[str, object]:
    """All that a scheduler is."""
    names = Scheduler(scheduler.limits).__dict__
    return {name: getattr(scheduler, name) for name in names}


def contents_of(scheduler: Scheduler) -> dict[str, bool]:
    """Whether there is any of each in its state, so that a test can say that nothing was always empty."""
    state = scheduler._state
    requests = list(state.requests())
    found = {
        "waiting": state.waiting,
        "paused": state.paused,
        "running": state.running,
        "steps in flight": scheduler.num_in_flight,
        "steps without successor": len(state.steps._steps) > scheduler.num_in_flight,
        "verdicts": state.verdicts,
        "orphans": state.orphans,
        "trial": state.trial.is_active,
        "fresh plan due": state.is_fresh_due,
        "keys of blocks": state.pool._block_by_key,
        "removed rows": state.rows._removed,
        "unsent deltas": state.outbox._deltas,
        "unsent ends": any(delta.finish is not None for delta in state.outbox._deltas.values()),
        "unsent prompts": any(delta.prompt_logprobs is not None for delta in state.outbox._deltas.values()),
        "transfers": state.transfers._requests,
        "abandoned transfers": None in state.transfers._requests.values(),
        "unsent transfers": state.transfers._unsent,
        "fates of grammars": state.grammars._fates,
        "requests without luck": state.grammars._unlucky,
        "waiting for grammars": state.grammars._waiting,
        "deadlines": state.deadlines._heap,
        "tenants": len(state.tenants._index) > 1,
        "drafts": any(request.draft_token_ids for request in requests),
        "drafts in flight": any(step.num_drafts is not None for step in state.steps._steps),
        "loaded tokens": any(request.num_loaded_tokens for request in requests),
        "gathered prompts": any(r.prompt_logprobs is not None and r.prompt_logprobs.num_known for r in requests),
        "log-probabilities": any(request.logprobs for request in requests),
        "preempted": any(request.is_preempted for request in requests),
        "tokens that only a row has": any(r.num_tokens > len(r.kept_token_ids) for r in requests),
        "ended requests in steps": any(state.find(*r.key) is not r for s in state.steps._steps for r in s.requests),
        "shared blocks": state.leaks._blocks._shared,
        "no worker": scheduler._epoch is None,
    }
    return {name: bool(value) for name, value in found.items()}
