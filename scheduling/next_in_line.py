"""Whose turn it is among those that wait."""

from __future__ import annotations

from .request import Request
from .state import SchedulerState


def next_in_line(state: SchedulerState) -> Request | None:
    """Whose turn it is; during a trial the first of the group that is tried which waits."""
    if state.trial.is_active:
        group = (state.waiting[key] for key in state.trial.group if key in state.waiting)
        return next((request for request in group if request.key in state.lines), None)
    return state.policies.order.choose(state.lines, state.order_view()) if len(state.lines) else None
