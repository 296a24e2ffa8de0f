"""Streaming sessions: a turn that ends waits for the next input."""

from __future__ import annotations

from callboard.mailbox.messages.admission import AddInput
from callboard.tests.scheduling.twin_request import FOR_GRAMMAR, FOR_INPUT, TwinEnd, TwinRequest
from callboard.tests.scheduling.twin_state import TwinState


def has_room(request: TwinRequest) -> bool:
    """There is something to answer, and room for one token more."""
    return 0 < request.num_prompt_tokens < request.max_total


def _tell(state: TwinState, request: TwinRequest, end: TwinEnd) -> None:
    state.pauses.setdefault(request.key, []).append(state.told(request, end))
    request.has_unsent_pause = True


def end_turn(state: TwinState, request: TwinRequest, end: TwinEnd) -> None:
    """The client is told, and says when it goes on."""
    _tell(state, request, end)
    state.pause(request)


def cut_turn(state: TwinState, request: TwinRequest, position: int) -> None:
    """The client's end of a turn: output from index `position` + 1 on does not count; told once a turn."""
    has_told = request.state == FOR_INPUT and not request.has_unsent_pause
    if request.has_unsent_pause:
        state.pauses[request.key].pop()
    if request.state != FOR_INPUT:
        state.pause(request)
    num_behind = request.output_index - (position + 1)
    del request.tokens[len(request.tokens) - min(num_behind, len(request.turn_output)) :]
    if not has_told:
        _tell(state, request, TwinEnd("stop"))


def add_input(state: TwinState, event: AddInput) -> None:
    """A turn begins; nothing to answer, or no room for an answer, ends the session. At another time it is dropped."""
    request = state.live.get((event.request_id, event.choice))
    if request is None or request.attempt != event.attempt or request.state != FOR_INPUT:
        return
    request.is_open = not event.is_last
    if event.is_last and not event.token_ids:
        state.end(request, TwinEnd("stop"))
        return
    request.begin_turn(event.token_ids)
    if not has_room(request):
        state.end(request, TwinEnd("length"))
        return
    state.turns[request.key, request.num_prompt_tokens] = request.admit
    state.come(request.admit.tenant)
    state.enqueue(request)
    await_grammar(state, request)


def await_grammar(state: TwinState, request: TwinRequest) -> None:
    """One that waits for its turn may have to wait for its grammar first, once; without a good one it ends."""
    if not request.lacks_grammar:
        return
    is_unlucky = request.key[0] in state.unlucky
    if request.admit.grammar_key not in state.grammars and not is_unlucky:
        request.state = FOR_GRAMMAR
        return
    status = 500 if is_unlucky else state.grammars[request.admit.grammar_key]
    request.lacks_grammar = status is not None
    if status is not None:
        state.end(request, TwinEnd("error", status=status))
