"""Requests whose tokenizer died: they run on unheard until a higher attempt claims them, or their grace is over."""

from __future__ import annotations

from .request import RequestState
from .state import SchedulerState


def lose_tokenizer(state: SchedulerState, tokenizer: str) -> None:
    """Its successor has its name and does not know its requests: what was to be said to it is not said."""
    state.outbox.forget(tokenizer)
    deadline_ns = state.now_ns + round(state.limits.resume_grace_s * 1e9)
    for request in state.requests():
        if request.tokenizer == tokenizer:
            request.tokenizer = None
            state.orphans[request.key] = deadline_ns


def sweep(state: SchedulerState) -> None:
    """End the orphans whose grace is over: their client is gone, or has ended its stream. Verdicts last as long."""
    while state.verdicts and next(iter(state.verdicts.values()))[0] <= state.now_ns:
        del state.verdicts[next(iter(state.verdicts))]
    while (deadline_ns := next_deadline_ns(state)) is not None and deadline_ns <= state.now_ns:
        request = state.find(*next(iter(state.orphans)))
        assert request is not None, "an orphan is live"
        state.end(request, RequestState.ABORTED)
        state.counters.num_orphans_ended += 1


def next_deadline_ns(state: SchedulerState) -> int | None:
    """When the first orphan's grace is over; None without orphans. They stand in the order of their deadlines, for
    the grace is the same for all."""
    return next(iter(state.orphans.values()), None)
