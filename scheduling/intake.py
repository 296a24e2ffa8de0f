"""Events from the tokenizers: requests that come, and requests that somebody ends."""

from __future__ import annotations

from ..mailbox.messages.admission import Admit, Stop
from ..mailbox.messages.requests import Abort, Finish, Refused
from .request import Request, RequestState
from .state import SchedulerState

RETRY_AFTER_S = 1
"""Told with a 429. The queue's speed is not known here, for the scheduler reads no clock."""


def take_in(state: SchedulerState, admit: Admit) -> None:
    """A request comes, or a newer attempt takes over one that is live; a repeated or older attempt is dropped."""
    known = state.find(admit.request_id, admit.choice)
    if known is not None:
        if admit.attempt > known.attempt:
            known.attempt, known.tokenizer = admit.attempt, admit.tokenizer
            state.outbox.resend(known)
        return
    request = Request(admit, state.limits)
    if not 0 < request.num_prompt_tokens < request.max_total_tokens:
        _ignore(state, request)
    elif (refused := _refusal(state, admit)) is not None:
        state.outbox.refuse(admit.tokenizer, refused)
    else:
        state.enqueue(request)


def stop(state: SchedulerState, event: Stop) -> None:
    """The tokenizer found a stop string: whatever comes after it is not wanted. The client is told by the tokenizer."""
    request = state.find(event.request_id, event.choice)
    if request is not None and request.attempt <= event.attempt:
        state.end(request, RequestState.STOPPED)
        state.outbox.drop(request.key)


def abort(state: SchedulerState, event: Abort) -> None:
    """Ends every choice of the request. The client is told by the tokenizer."""
    for request in state.choices(event.request_id):
        if request.attempt <= event.attempt:
            state.end(request, RequestState.ABORTED)
            state.outbox.drop(request.key)


def _ignore(state: SchedulerState, request: Request) -> None:
    """Nothing to compute, or the prompt and one token can never fit: told at once, never queued."""
    request.state = RequestState.IGNORED
    state.counters.num_finished += 1
    state.outbox.finish(request, Finish(request.state.finish_reason, request.usage()))


def _refusal(state: SchedulerState, admit: Admit) -> Refused | None:
    """A 429 if the queue is full. Requests for which a row is free do not count as queued, and an empty queue takes
    any prompt, or a large one would be refused for ever."""
    limits = state.limits
    room = limits.max_queued_requests + state.rows.num_free
    if len(state.waiting) >= room:
        message = (
            f"the queue is full: {limits.max_queued_requests:,} requests wait (max_queued_requests); try again later"
        )
        return _refused(admit, message, "queue_full")
    num_tokens = state.num_waiting_tokens + len(admit.prompt_token_ids)
    if state.waiting and num_tokens > limits.max_queued_tokens:
        message = (
            f"the queue is full: with this prompt {num_tokens:,} prompt tokens would wait, "
            f"the limit is {limits.max_queued_tokens:,} (max_queued_tokens); try again later"
        )
        return _refused(admit, message, "queue_tokens_full")
    return None


def _refused(admit: Admit, message: str, code: str) -> Refused:
    return Refused(
        request_id=admit.request_id,
        choice=admit.choice,
        attempt=admit.attempt,
        status=429,
        error_type="rate_limit_error",
        message=message,
        code=code,
        retry_after_s=RETRY_AFTER_S,
    )
