"""What ends because time passes: deadlines of requests, the grace of orphans, the memory of verdicts."""

from __future__ import annotations

from ..mailbox.messages.requests import Finish
from . import orphans
from .request import RequestState
from .state import SchedulerState


def sweep(state: SchedulerState) -> None:
    """End whatever is due at `state.now_ns`; nothing of it is planned any more."""
    if not (state.deadlines or state.orphans or state.verdicts):
        return
    for request in state.deadlines.due(state.now_ns, state.find):
        state.outbox.finish(request, Finish(RequestState.TIMEOUT.finish_reason, request.usage()))
        state.end(request, RequestState.TIMEOUT)
        state.counters.num_timed_out += 1
    orphans.sweep(state)


def next_deadline_ns(state: SchedulerState) -> int | None:
    """When `sweep` has something to do next; None: never."""
    due = [orphans.next_deadline_ns(state), state.deadlines.next_ns(state.find)]
    return min((at_ns for at_ns in due if at_ns is not None), default=None)
