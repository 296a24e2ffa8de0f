"""Streaming sessions: where a request would end it waits for more input instead."""

from __future__ import annotations

from array import array

from ..mailbox.messages.admission import AddInput
from ..mailbox.messages.requests import Finish
from .request import Request, RequestState
from .state import SchedulerState
from .stop import Ending


def add_input(state: SchedulerState, event: AddInput) -> None:
    """More input: it is used at the session's next pause, or at once if it waits for it."""
    request = state.find(event.request_id, event.choice)
    if request is None or event.attempt != request.attempt or not request.is_open:
        return
    request.inputs.append((array("i", event.token_ids), event.is_last))
    if request.key in state.paused:
        _use_input(state, request)


def end_of_turn(state: SchedulerState, request: Request, ending: Ending) -> None:
    """The turn of an open session ends: it goes on with what has come already, or waits."""
    finish = Finish(ending.state.finish_reason, request.usage(), ending.stop_reason)
    state.outbox.pause(request, finish)
    state.pause(request)
    if request.inputs:
        _use_input(state, request)


def cut_turn(state: SchedulerState, request: Request, position: int) -> None:
    """The tokenizer found a stop string in an open session, and has told its client: output tokens from index
    `position` + 1 on do not count, and the session waits for input."""
    state.outbox.drop(request.key)
    if request.key not in state.paused:
        state.pause(request)
    request.cut_output(position + 1)
    if request.inputs:
        _use_input(state, request)


def _use_input(state: SchedulerState, request: Request) -> None:
    token_ids, is_last = request.inputs.pop(0)
    request.is_open = not is_last
    if not token_ids:
        ending = RequestState.STOPPED  # nothing to answer: the client is done
    else:
        request.add_input(token_ids, state.limits)
        if request.num_tokens < state.limits.max_total_tokens:
            state.unpause(request)
            return
        ending = RequestState.LENGTH_CAPPED
    state.outbox.finish(request, Finish(ending.finish_reason, request.usage()))
    state.end(request, ending)
