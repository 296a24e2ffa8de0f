"""Steps that fail, workers that die, and the search for who is to blame."""

from __future__ import annotations

from collections import deque

from callboard.tests.scheduling.twin_request import FOR_REMOTE_KV, Key, TwinEnd, TwinRequest
from callboard.tests.scheduling.twin_sessions import await_grammar
from callboard.tests.scheduling.twin_state import TwinState

MAX_DEATHS = 2


def fail_step(state: TwinState, requests: list[TwinRequest]) -> None:
    """Whoever stood in the step is a suspect; if it was one alone it is to blame. Steps behind it were not run."""
    _roll_back(state)
    state.is_fresh_due = True
    state.in_flight = deque([] for _ in state.in_flight)
    suspects = _live(state, requests)
    if len(requests) == 1:
        for request in suspects:
            _convict(state, request)
    else:
        half = (len(suspects) + 1) // 2
        _try_first(state, [suspects[:half], suspects[half:]])


def lose_worker(state: TwinState) -> None:
    """Who was in flight at two deaths, without a token between, is to blame if it is one alone; several are tried."""
    requests = _live(state, [request for step in state.in_flight for request in step])
    state.in_flight.clear()
    _roll_back(state)
    state.is_fresh_due = False
    for request in requests:
        request.num_deaths += 1
    suspects = [request for request in requests if request.num_deaths >= MAX_DEATHS]
    if len(suspects) == 1:
        _convict(state, suspects[0])
    elif suspects:
        _try_first(state, [[request] for request in suspects])


def acquit(state: TwinState, key: Key) -> None:
    """It has a token, or has ended."""
    state.groups = [rest for group in state.groups if (rest := [member for member in group if member != key])]


def _try_first(state: TwinState, groups: list[list[TwinRequest]]) -> None:
    """Before the groups that are there, which the suspects leave."""
    tried = [[request.key for request in group] for group in groups]
    moved = [key for group in tried for key in group]
    others = [[key for key in group if key not in moved] for group in state.groups]
    state.groups = [group for group in [*tried, *others] if group]


def _convict(state: TwinState, request: TwinRequest) -> None:
    """It ends, is not tried again, and the others are taken for innocent."""
    state.end(request, TwinEnd("error"))
    state.verdicts[request.key] = state.now_ns + round(state.limits.resume_grace_s * 1e9)
    state.groups = []


def _live(state: TwinState, requests: list[TwinRequest]) -> list[TwinRequest]:
    """Those that have not ended, each once."""
    return list({r.key: r for r in requests if state.live.get(r.key) is r}.values())


def _roll_back(state: TwinState) -> None:
    """All K/V are gone: what ran goes back, what was loaded or is being loaded is lost."""
    for request in reversed(list(state.running)):
        state.preempt(request)
    for request in state.waiting():
        if request.state == FOR_REMOTE_KV:
            state.abandon_load(request)
            state.let_go(request)
            await_grammar(state, request)
    for request in state.waiting():
        state.drop_loaded(request)
    state.pool.contents.clear()
