"""Requests whose grammar has to be compiled before they run, the first time or again."""

from __future__ import annotations

from ..mailbox.messages.grammar import GrammarFailed, MatcherFailed
from ..mailbox.messages.requests import Finish
from .request import Request, RequestState
from .state import SchedulerState


def await_grammar(state: SchedulerState, request: Request) -> None:
    """A request that could go waits for its grammar if it needs one, unless that is ready; it ends if it is known to be
    bad."""
    if not request.needs_grammar:
        return
    if not state.grammars.is_known(request):
        state.hold_back(request, RequestState.WAITING_FOR_GRAMMAR)
        state.grammars.wait(request)
    elif (failure := state.grammars.failure(request)) is not None:
        _end(state, request, failure.message, failure.status)
    else:
        request.needs_grammar = False


def decide_grammar(state: SchedulerState, grammar_key: str, failure: GrammarFailed | None) -> None:
    """A grammar is ready, or (`failure`: why) was not compiled: who waited for it may go, or ends."""
    for request in state.grammars.decide(grammar_key, failure):
        if failure is None:
            request.needs_grammar = False
            state.let_go(request)
        else:
            _end(state, request, failure.message, failure.status)


def lose_grammars(state: SchedulerState) -> None:
    """Matchers and compiled grammars are gone: what ran under one is computed anew when it is there again."""
    state.grammars.forget_all()
    for request in reversed(list(state.running.values())):
        if request.grammar_key:
            state.preempt(request, "grammar")
    state.constrained.forget_ended()
    for request in list(state.waiting.values()):
        if request.grammar_key:
            request.needs_grammar = True
            if request.key in state.lines:
                await_grammar(state, request)


def fail_matcher(state: SchedulerState, event: MatcherFailed) -> None:
    """The request ends with what it has; a run that is over is no matter of anybody."""
    request = state.running.get(event.run)
    if request is not None:
        _end(state, request, event.message, event.status)


def _end(state: SchedulerState, request: Request, message: str, status: int) -> None:
    finish = Finish(RequestState.ERROR.finish_reason, request.usage(), message=message, status=status)
    state.outbox.finish(request, finish)
    state.end(request, RequestState.ERROR)
