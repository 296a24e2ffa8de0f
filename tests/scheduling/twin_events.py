"""What each event changes, as the rules say it."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.mailbox.messages.admission import AddInput, Admit, Stop
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.grammar import GrammarFailed, GrammarReady, MatcherFailed
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import StepOutcome, StepResult
from callboard.mailbox.messages.transfers import BlocksLoaded
from callboard.scheduling.events import Event, GrammarGone, TokenizerGone, WorkerAttached, WorkerGone
from callboard.tests.scheduling.fake_rows import ints, sampled_of
from callboard.tests.scheduling.twin_request import FOR_GRAMMAR, FOR_INPUT, FOR_REMOTE_KV, TwinEnd, TwinRequest
from callboard.tests.scheduling.twin_sessions import add_input, await_grammar, cut_turn, end_turn, has_room
from callboard.tests.scheduling.twin_state import TwinState
from callboard.tests.scheduling.twin_trouble import acquit, fail_step, lose_worker


def apply(state: TwinState, event: Event) -> None:
    match event:
        case Admit():
            _admit(state, event)
        case AddInput():
            add_input(state, event)
        case Stop():
            _stop(state, event)
        case Abort():
            _abort(state, event)
        case GrammarReady():
            _settle_grammar(state, event.grammar_key, None)
        case GrammarFailed():
            _settle_grammar(state, event.grammar_key, event.status, event.request_ids)
        case MatcherFailed():
            if event.epoch == state.epoch and event.run in state.request_of_run:
                state.end(state.request_of_run[event.run], TwinEnd("error", status=event.status))
        case Drafts():
            _keep_drafts(state, event)
        case BlocksLoaded():
            _use_loaded(state, event)
        case StepResult():
            if event.epoch == state.epoch:
                _take_result(state, event)
        case WorkerGone():
            lose_worker(state)
            state.epoch = None
        case WorkerAttached():
            lose_worker(state)
            state.epoch = event.epoch
        case TokenizerGone():
            _lose_tokenizer(state, event.tokenizer)
        case GrammarGone():
            _lose_grammars(state)
        case _:
            raise AssertionError(f"the twin does not know {event}")


def end_overdue(state: TwinState) -> None:
    """Requests past their deadlines, the earliest first; then those that nobody claimed in time."""
    overdue = [r for r in state.live.values() if deadline_of(r) <= state.now_ns]
    for request in sorted(overdue, key=lambda request: (deadline_of(request), request.key)):
        state.end(request, TwinEnd("timeout"))
        state.num_timed_out += 1
    state.verdicts = {key: until for key, until in state.verdicts.items() if until > state.now_ns}
    unclaimed = [r for r in state.live.values() if r.orphan is not None and r.orphan[0] <= state.now_ns]
    for request in sorted(unclaimed, key=lambda request: request.orphan or (0, 0)):
        state.forget(request)


def deadline_of(request: TwinRequest) -> float:
    return float("inf") if request.admit.deadline_ns is None else request.admit.deadline_ns


def _admit(state: TwinState, admit: Admit) -> None:
    known = state.live.get((admit.request_id, admit.choice))
    if known is not None:
        if admit.attempt <= known.attempt:
            return
        if not (known.admit.is_session or known.admit.first_output_index):
            _take_over(state, known, admit)
            return
        state.forget(known)  # a session begins anew
    request = TwinRequest(admit, state.limits)
    is_guilty = admit.attempt > 1 and request.key in state.verdicts
    end = None if admit.is_paused else _end_at_once(request)
    if is_guilty:
        end = TwinEnd("error")
    code = _refusal(state, request) if admit.attempt == 1 and end is None else None
    if code is not None:
        state.refused[request.key] = code
        return
    if end is not None and (is_guilty or not request.is_open or not has_room(request)):
        state.ends[request.key] = (state.told(request, end), request.num_come_with, request.output)
        state.num_finished += 1
        return
    state.turns[request.key, request.num_prompt_tokens] = request.admit
    state.take_in(request)
    if admit.is_paused or end is not None:
        if end is not None:
            end_turn(state, request, end)
        else:
            state.pause(request)
        return
    state.enqueue(request)
    await_grammar(state, request)


def _end_at_once(request: TwinRequest) -> TwinEnd | None:
    """Nothing to compute, no room for one token more, or all of it there already."""
    if not has_room(request):
        return TwinEnd("length")
    return request.end_after_last_token() if request.turn_output else None


def _refusal(state: TwinState, request: TwinRequest) -> str | None:
    waiting = state.waiting()
    if len(waiting) >= state.limits.max_queued_requests + state.num_free_rows:
        return "queue_full"
    num_tokens = sum(other.num_prompt_tokens for other in waiting) + request.num_prompt_tokens
    return "queue_tokens_full" if waiting and num_tokens > state.limits.max_queued_tokens else None


def _take_over(state: TwinState, known: TwinRequest, admit: Admit) -> None:
    known.attempt, known.tokenizer, known.orphan = admit.attempt, admit.tokenizer, None
    asks = known.admit.sampling.prompt_logprobs is not None
    if asks and known.has_told_prompt and not admit.output_token_ids:  # they went with the first token
        if known in state.running:
            state.preempt(known)
        del known.tokens[known.num_prompt_tokens :]
        known.has_told_prompt = False


def _stop(state: TwinState, event: Stop) -> None:
    request = state.live.get((event.request_id, event.choice))
    if request is None or request.attempt > event.attempt:
        return
    if request.is_open:
        cut_turn(state, request, event.position)
    else:
        state.forget(request)


def _abort(state: TwinState, event: Abort) -> None:
    for key, request in list(state.live.items()):
        if key[0] == event.request_id and request.attempt <= event.attempt:
            state.forget(request)


def _settle_grammar(state: TwinState, grammar_key: str, status: int | None, request_ids: Sequence[str] = ()) -> None:
    """A fault of the engine's ends the requests that it names, and says nothing of the grammar."""
    if status == 500:
        state.unlucky.update(request_ids)
    else:
        state.grammars[grammar_key] = status
    for request in list(state.live.values()):
        is_meant = status != 500 or request.key[0] in request_ids
        if request.state == FOR_GRAMMAR and request.admit.grammar_key == grammar_key and is_meant:
            state.let_go(request)
            await_grammar(state, request)


def _lose_grammars(state: TwinState) -> None:
    """Nothing is known of any; whoever runs under one goes back, and waits until it is there again."""
    state.grammars.clear()
    state.unlucky.clear()
    for request in reversed(list(state.running)):
        if request.admit.grammar_key:
            state.preempt(request)
    for request in state.waiting():
        if request.admit.grammar_key:
            request.lacks_grammar = True
            if request.state != FOR_REMOTE_KV:
                await_grammar(state, request)


def _keep_drafts(state: TwinState, event: Drafts) -> None:
    """Those of a row whose last token is known, and lacks nothing but to be computed; of none under a grammar."""
    for run, position, drafts in zip(event.runs, event.positions, event.token_ids, strict=True):
        request = state.request_of_run.get(run)
        if request is None or position != len(request.tokens) or request.admit.grammar_key:
            continue
        if state.limits.max_drafts:
            continue
        if not request.num_pending and request.num_missing == 1:
            room = request.max_total - len(request.tokens) - 1
            request.drafts = drafts[:room]


def _use_loaded(state: TwinState, event: BlocksLoaded) -> None:
    """Whole blocks count; what is not there is free again, and so is all if nobody waits for it."""
    load = state.loads.pop(event.transfer)
    request = load.request
    if request is None:
        state.pool.give_back(load.blocks)
        return
    num_blocks = event.num_tokens // state.limits.block_size
    state.pool.give_back(load.blocks[num_blocks:])
    request.blocks = load.blocks[:num_blocks]
    request.num_loaded = request.num_computed = num_blocks * state.limits.block_size
    state.label_blocks(request)
    request.num_computed = 0
    state.let_go(request)
    await_grammar(state, request)


def _take_result(state: TwinState, result: StepResult) -> None:
    requests = state.in_flight.popleft()
    if result.outcome is StepOutcome.FAILED:
        fail_step(state, requests)
    drafted = ints(result.num_drafted) or [None] * (len(result.runs) // 8)
    rows = zip(sampled_of(result), ints(result.positions), drafted, strict=True)
    for (run, sampled), position, num_drafted in rows:
        request = state.request_of_run.get(run)
        if request is not None and sampled:
            _append(state, request, sampled, num_drafted)
        elif request is not None:
            _plan_again(state, request, position)


def _plan_again(state: TwinState, request: TwinRequest, position: int) -> None:
    """Its mask was late: the last known token is computed once more. Plans that were made in the hope that a token
    would come have none either, and say nothing new; but where rows guess, each of them goes on where it stands."""
    if state.limits.has_constrained_drafts:
        request.num_computed, request.num_pending = request.num_computed - 1, request.num_pending - 1
        request.allowances.pop(0)
        state.num_late += 1
    elif position == len(request.tokens):
        request.num_computed, request.num_pending, request.num_drafts_in_flight = position - 1, 0, 0
        request.allowances = []
        state.num_late += 1


def _append(state: TwinState, request: TwinRequest, sampled: list[int], num_drafted: int | None) -> None:
    """Each token may be the last; drafts that were not accepted were never computed."""
    num_accepted = len(sampled) - 1
    state.num_accepted += num_accepted
    state.num_drafts += request.num_drafts_in_flight if num_drafted is None else num_drafted
    request.num_pending -= 1
    request.num_computed = min(request.num_computed + num_accepted, request.last_place)
    request.num_drafts_in_flight = 0
    num_allowed = request.allowances.pop(0)
    assert num_drafted is None or num_accepted <= num_drafted <= num_allowed
    request.drafts = []
    request.num_deaths = 0
    acquit(state, request.key)
    request.has_told_prompt = True
    for token in sampled:
        request.tokens.append(token)
        state.num_generated_tokens += 1
        state.served[request.admit.tenant] += 1
        end = request.end_after_last_token()
        if end is None:
            continue
        if request.is_open:
            end_turn(state, request, end)
        else:
            state.end(request, end)
        return


def _lose_tokenizer(state: TwinState, tokenizer: str) -> None:
    paused = [request for request in state.live.values() if request.state == FOR_INPUT]
    paused.sort(key=lambda request: request.waits_since)
    for number, request in enumerate([*state.waiting(), *paused, *state.running]):
        if request.tokenizer == tokenizer:
            request.tokenizer = None
            request.orphan = (state.now_ns + round(state.limits.resume_grace_s * 1e9), number)
