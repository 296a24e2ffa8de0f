"""Streaming sessions: where a request would end it waits for more input instead."""

from __future__ import annotations

from ..mailbox.messages.admission import AddInput
from ..mailbox.messages.requests import Finish
from .request import Request, RequestState
from .state import SchedulerState
from .stop import Ending
from .waiting_for_grammar import await_grammar


def end_of_turn(state: SchedulerState, request: Request, ending: Ending) -> None:
    """The turn of an open session ends: it waits for input, and says so."""
    state.outbox.pause(request, Finish(ending.state.finish_reason, request.usage(), ending.stop_reason))
    state.pause(request)


def cut_turn(state: SchedulerState, request: Request, position: int) -> None:
    """The tokenizer found a stop string in an open session: what comes behind output token `position` does not count.

    If the session has paused by itself meanwhile, and has said so, nothing more is said.
    """
    has_told = request.key in state.paused and not state.outbox.has_pause(request.key)
    state.outbox.drop(request.key)
    if request.key not in state.paused:
        state.pause(request)
        state.outbox.drop(request.key)
    request.cut_output(max(0, position + 1 - request.first_output_index))
    if not has_told:
        state.outbox.pause(request, Finish(RequestState.STOPPED.finish_reason, request.usage()))


def add_input(state: SchedulerState, event: AddInput) -> None:
    """A paused session goes on as a newcomer, which no limit of the queue refuses. Input at another time is dropped."""
    request = state.find(event.request_id, event.choice)
    if request is None or event.attempt != request.attempt or request.key not in state.paused:
        return
    request.is_open = not event.is_last
    if not event.token_ids and event.is_last:
        ending = RequestState.STOPPED  # nothing to answer: the client is done
    else:
        request.add_input(event.token_ids, state.limits)
        if request.num_prompt_tokens < request.max_total_tokens:
            state.unpause(request)
            if request.needs_grammar:  # it was resumed at a pause, and has not been in line yet
                await_grammar(state, request)
            return
        ending = RequestState.IGNORED  # this and one token more can never fit
    state.outbox.finish(request, Finish(ending.finish_reason, request.usage()))
    state.end(request, ending)
