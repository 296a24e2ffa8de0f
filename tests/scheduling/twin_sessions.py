"""Streaming sessions: a turn that ends waits for the next input."""

from __future__ import annotations

from callboard.mailbox.messages.admission import AddInput
from callboard.tests.scheduling.twin_request import FOR_INPUT, TwinEnd, TwinRequest
from callboard.tests.scheduling.twin_state import TwinState


def add_input(state: TwinState, event: AddInput) -> None:
    """It is used when the session waits for it."""
    request = state.live.get((event.request_id, event.choice))
    if request is None or request.attempt != event.attempt or not request.is_open:
        return
    request.inputs.append((list(event.token_ids), event.is_last))
    if request.state == FOR_INPUT:
        use_input(state, request)


def end_turn(state: TwinState, request: TwinRequest, end: TwinEnd) -> None:
    """The client is told; input that is there already goes in at once."""
    state.pauses.setdefault(request.key, []).append(state.told(request, end))
    state.pause(request)
    if request.inputs:
        use_input(state, request)


def cut_turn(state: TwinState, request: TwinRequest, position: int) -> None:
    """The client's end of a turn: output from index `position` + 1 on does not count."""
    if request.state != FOR_INPUT:
        state.pause(request)
    num_kept = position + 1 - request.num_earlier_tokens
    del request.tokens[request.num_prompt_tokens + max(0, num_kept) :]
    if request.inputs:
        use_input(state, request)


def use_input(state: TwinState, request: TwinRequest) -> None:
    """A turn begins; nothing to answer, or no room for an answer, ends the session."""
    token_ids, is_last = request.inputs.pop(0)
    request.is_open = not is_last
    if not token_ids:
        state.end(request, TwinEnd("stop"))
        return
    request.begin_turn(token_ids)
    if len(request.tokens) >= request.longest:
        state.end(request, TwinEnd("length"))
        return
    state.turns[request.key, request.num_prompt_tokens] = request.admit
    state.enqueue(request)
