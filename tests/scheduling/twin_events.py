"""What each event changes, as the rules say it."""

from __future__ import annotations

import numpy as np

from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.grammar import GrammarFailed, GrammarReady
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import StepResult
from callboard.scheduling.events import Event, TokenizerGone, WorkerAttached, WorkerGone
from callboard.tests.scheduling.twin_request import FOR_GRAMMAR, WAITING, TwinEnd, TwinRequest
from callboard.tests.scheduling.twin_state import TwinState


def apply(state: TwinState, event: Event) -> None:
    match event:
        case Admit():
            _admit(state, event)
        case Stop():
            _forget_up_to(state, event.request_id, event.attempt, event.choice)
        case Abort():
            _forget_up_to(state, event.request_id, event.attempt, None)
        case GrammarReady():
            _settle_grammar(state, event.grammar_key, None)
        case GrammarFailed():
            _settle_grammar(state, event.grammar_key, event.message)
        case Drafts():
            _keep_drafts(state, event)
        case StepResult():
            if event.epoch == state.epoch:
                _take_result(state, event)
        case WorkerGone():
            _lose_worker(state)
            state.epoch = None
        case WorkerAttached():
            _lose_worker(state)
            state.epoch = event.epoch
        case TokenizerGone():
            _lose_tokenizer(state, event.tokenizer)
        case _:
            raise AssertionError(f"the twin does not know {event}")


def end_overdue(state: TwinState) -> None:
    """Requests that nobody waits for any more, and those past their deadlines."""
    for request in list(state.live.values()):
        if request.orphan_until_ns is not None and request.orphan_until_ns <= state.now_ns:
            state.forget(request)
        elif request.admit.deadline_ns is not None and request.admit.deadline_ns <= state.now_ns:
            state.end(request, TwinEnd("timeout"))


def _admit(state: TwinState, admit: Admit) -> None:
    known = state.live.get((admit.request_id, admit.choice))
    if known is not None:
        if admit.attempt > known.attempt:
            _take_over(state, known, admit)
        return
    request = TwinRequest(admit, state.limits)
    end = _end_at_once(state, request)
    code = _refusal(state, request) if admit.attempt == 1 and end is None else None
    if code is not None:
        state.refused[request.key] = code
        return
    state.enqueue(request, WAITING)
    if end is not None:
        state.num_come -= 1
        state.end(request, end)
    elif admit.grammar_key and admit.grammar_key not in state.grammars:
        request.state = FOR_GRAMMAR


def _end_at_once(state: TwinState, request: TwinRequest) -> TwinEnd | None:
    """Nothing to compute, no room for one token more, all of it there already, or a grammar that is none."""
    if not request.num_prompt_tokens or request.num_prompt_tokens >= request.max_total:
        return TwinEnd("length")
    if state.grammars.get(request.admit.grammar_key) is not None:
        return TwinEnd("error", status=400)
    return request.end_after_last_token() if request.num_output_tokens else None


def _refusal(state: TwinState, request: TwinRequest) -> str | None:
    waiting = state.waiting()
    if len(waiting) >= state.limits.max_queued_requests + state.num_free_rows:
        return "queue_full"
    num_tokens = sum(other.num_prompt_tokens for other in waiting) + request.num_prompt_tokens
    return "queue_tokens_full" if waiting and num_tokens > state.limits.max_queued_tokens else None


def _take_over(state: TwinState, known: TwinRequest, admit: Admit) -> None:
    known.attempt, known.tokenizer, known.orphan_until_ns = admit.attempt, admit.tokenizer, None
    has_told = (
        known.admit.sampling.prompt_logprobs is not None and not known.gathers and not known.admit.output_token_ids
    )
    if has_told and not admit.output_token_ids:  # the prompt's log-probabilities went with the first token
        if known in state.running:
            state.preempt(known)
        del known.tokens[known.num_prompt_tokens :]


def _forget_up_to(state: TwinState, request_id: str, attempt: int, choice: int | None) -> None:
    for key, request in list(state.live.items()):
        if key[0] == request_id and choice in (None, key[1]) and request.attempt <= attempt:
            state.forget(request)


def _settle_grammar(state: TwinState, grammar_key: str, message: str | None) -> None:
    state.grammars[grammar_key] = message
    for request in list(state.live.values()):
        if request.state == FOR_GRAMMAR and request.admit.grammar_key == grammar_key:
            if message is None:
                request.state = WAITING
            else:
                state.end(request, TwinEnd("error", status=400))


def _keep_drafts(state: TwinState, event: Drafts) -> None:
    for run, position, drafts in zip(event.runs, event.positions, event.token_ids, strict=True):
        request = state.request_of_run.get(run)
        if request is not None and position == len(request.tokens):
            request.drafts = list(drafts)


def _take_result(state: TwinState, result: StepResult) -> None:
    state.in_flight.popleft()
    runs = np.frombuffer(result.runs, "<i8").tolist()
    tokens = np.frombuffer(result.token_ids, "<i4").tolist()
    counts = np.frombuffer(result.num_sampled, "<i4").tolist() or [1] * len(runs)
    for run, count in zip(runs, counts, strict=True):
        sampled, tokens = tokens[:count], tokens[count:]
        if run in state.request_of_run:
            _append(state, state.request_of_run[run], sampled)


def _append(state: TwinState, request: TwinRequest, sampled: list[int]) -> None:
    request.num_pending -= 1
    request.num_computed -= request.num_drafts_in_flight - (len(sampled) - 1)
    request.num_drafts_in_flight = 0
    request.drafts = []
    request.num_deaths = 0
    for token in sampled:
        request.tokens.append(token)
        state.num_generated_tokens += 1
        state.label_blocks(request)
        end = request.end_after_last_token()
        if end is not None:
            state.end(request, end)
            return


def _lose_worker(state: TwinState) -> None:
    in_flight = {request.key: request for requests in state.in_flight for request in requests}
    for request in in_flight.values():
        request.num_deaths += 1
    assert all(r.num_deaths < 2 for r in in_flight.values() if state.live.get(r.key) is r), "the twin tries nobody"
    state.in_flight.clear()
    for request in reversed(list(state.running)):
        state.preempt(request)
    state.pool.contents.clear()


def _lose_tokenizer(state: TwinState, tokenizer: str) -> None:
    for request in state.live.values():
        if request.tokenizer == tokenizer:
            request.tokenizer = None
            request.orphan_until_ns = state.now_ns + round(state.limits.resume_grace_s * 1e9)
