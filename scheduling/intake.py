"""Events from the tokenizers: requests that come, and requests that somebody ends."""

from __future__ import annotations

from ..mailbox.messages.admission import Admit, Stop
from ..mailbox.messages.requests import Abort, Finish, Refused
from .request import Request, RequestState
from .sessions import cut_turn, end_of_turn
from .state import SchedulerState
from .stop import Ending, ending_of
from .waiting_for_grammar import await_grammar


def take_in(state: SchedulerState, admit: Admit) -> None:
    """A request comes, or a newer attempt takes over one that is live; a repeated or older attempt is dropped.

    A resumed request that is not known brings the output that its client has, and goes on behind it. It was accepted
    once, so the queue's limits do not refuse it.
    """
    known = state.find(admit.request_id, admit.choice)
    if known is not None:
        if admit.attempt <= known.attempt:
            return
        if not (known.is_session or known.first_output_index):
            _take_over(state, known, admit)
            return
        # What its client has may lie turns back: it begins anew, and finds in the cache what it had computed.
        state.end(known, RequestState.ABORTED)
    request = Request(admit, state.limits)
    state.outbox.drop(request.key)  # what is left of an attempt that has ended here, but not at the client
    if admit.attempt == 1 and (refused := _refusal(state, request)) is not None:
        state.outbox.refuse(admit.tokenizer, refused)
        return
    state.counters.num_resumed += admit.attempt > 1
    _, sentence = state.verdicts.get(request.key, (0, None)) if admit.attempt > 1 else (0, None)
    ending = None if admit.is_paused else _ended_before(request)
    if sentence is not None:
        ending = Ending(RequestState.ERROR)
    elif ending is None or (request.is_open and ending.state is not RequestState.IGNORED):
        _begin(state, request, ending, is_paused=admit.is_paused)
        return
    state.ledgers.come(request)
    state.ledgers.end(request, ending.state)
    request.state = ending.state
    state.counters.num_finished += 1
    finish = Finish(ending.state.finish_reason, request.usage(), ending.stop_reason, message=sentence)
    state.outbox.finish(request, finish)


def _begin(state: SchedulerState, request: Request, ending: Ending | None, *, is_paused: bool) -> None:
    """It is live: it waits for its turn, or, a resumed session, for input; `ending`: its turn has ended already."""
    state.take_in(request)
    if ending is not None:
        end_of_turn(state, request, ending)
        return
    if is_paused:
        state.pause(request)
        return
    state.enqueue(request)
    await_grammar(state, request)


def stop(state: SchedulerState, event: Stop) -> None:
    """The tokenizer found a stop string: whatever comes after it is not wanted. The client is told by the tokenizer."""
    request = state.find(event.request_id, event.choice)
    if request is None or request.attempt > event.attempt:
        return
    if request.is_open:
        cut_turn(state, request, event.position)
        return
    state.end(request, RequestState.STOPPED)
    state.outbox.drop(request.key)


def abort(state: SchedulerState, event: Abort) -> None:
    """Ends every choice of the request. The client is told by the tokenizer."""
    for request in state.choices(event.request_id):
        if request.attempt <= event.attempt:
            state.end(request, RequestState.ABORTED)
            state.outbox.drop(request.key)


def _take_over(state: SchedulerState, known: Request, admit: Admit) -> None:
    """The run goes on as it is; what the new attempt's client has not seen is sent again.

    Log-probabilities of the prompt are not kept once they were handed over: if the client has not even the first token,
    which comes with them, the request begins again.
    """
    known.attempt, known.tokenizer = admit.attempt, admit.tokenizer
    state.orphans.pop(known.key, None)
    state.counters.num_resumed += 1
    if known.has_lost_prompt_logprobs and not admit.output_token_ids:
        if known.run is not None:
            state.preempt(known, "resume")
        known.forget_output(state.limits.block_size)
    state.outbox.resend(known, len(admit.output_token_ids))


def _ended_before(request: Request) -> Ending | None:
    """How a request ends that needs no token more; None: it needs some."""
    if not 0 < request.num_prompt_tokens < request.max_total_tokens:
        return Ending(RequestState.IGNORED)  # nothing to compute, or the prompt and one token can never fit
    return ending_of(request) if request.num_output_tokens else None


def _refusal(state: SchedulerState, request: Request) -> Refused | None:
    """A 429 if the queue is full; a request that can never be served is no matter of room."""
    limits = state.limits
    if _ended_before(request) is not None:
        return None
    if state.num_queued_room <= 0:
        message = (
            f"the queue is full: {limits.max_queued_requests:,} requests wait (max_queued_requests); try again later"
        )
        return _refused(state, request, message, "queue_full")
    if not state.takes_tokens(request.num_prompt_tokens):
        num_tokens = state.num_waiting_tokens + request.num_prompt_tokens
        message = (
            f"the queue is full: with this prompt {num_tokens:,} prompt tokens would wait, "
            f"the limit is {limits.max_queued_tokens:,} (max_queued_tokens); try again later"
        )
        return _refused(state, request, message, "queue_tokens_full")
    return None


def _refused(state: SchedulerState, request: Request, message: str, code: str) -> Refused:
    return Refused(
        request_id=request.key[0],
        choice=request.key[1],
        attempt=request.attempt,
        status=429,
        error_type="rate_limit_error",
        message=message,
        code=code,
        retry_after_s=state.retry_after_s(request.num_prompt_tokens),
    )
