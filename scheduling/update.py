"""What a step's result changes: tokens become known, some requests end."""

from __future__ import annotations

import numpy as np

from ..errors import ProtocolViolation
from ..mailbox.messages.requests import Finish, TokenLogprobs
from ..mailbox.messages.steps import StepResult
from .gather import gather_prompt_logprobs
from .prompt_logprobs import GatheredLogprobs
from .request import Request
from .state import SchedulerState
from .stop import ending_of


def apply_result(state: SchedulerState, result: StepResult) -> None:
    """Append the tokens of the oldest step in flight to their requests and end those that are complete.

    Results of a run that is over (ended or preempted since the plan) are dropped. Raises ProtocolViolation if the
    result is not the oldest step's, its arrays do not match, or a token leaves a gap.
    """
    state.steps.complete(result.step, result.num_plans_waiting > 0)
    runs = np.frombuffer(result.runs, dtype="<i8").tolist()
    positions = np.frombuffer(result.positions, dtype="<i4").tolist()
    token_ids = np.frombuffer(result.token_ids, dtype="<i4").tolist()
    if not len(runs) == len(positions) == len(token_ids):
        raise ProtocolViolation(
            f"result of step {result.step} has {len(runs)} runs, {len(positions)} positions, {len(token_ids)} tokens"
        )
    if result.prompt_logprobs is not None:
        gather_prompt_logprobs(state.running, result.step, result.prompt_logprobs)
    logprobs = _Logprobs(result)
    for index, (run, position, token_id) in enumerate(zip(runs, positions, token_ids, strict=True)):
        request = state.running.get(run)
        if request is not None:
            _append(state, request, position, token_id, logprobs.of_row(index, token_id, request))


def _append(
    state: SchedulerState, request: Request, position: int, token_id: int, logprobs: TokenLogprobs | None
) -> None:
    if position != request.num_tokens or not request.num_in_flight:
        raise ProtocolViolation(
            f"request {request.key} run {request.run} got the token at position {position}, "
            f"{request.num_tokens} is next and {request.num_in_flight} are in flight"
        )
    request.token_ids.append(token_id)
    request.num_in_flight -= 1
    if request.logprobs is not None and logprobs is not None:
        request.logprobs.append(logprobs)
    request.num_deaths = 0
    state.trial.acquit(request.key)
    state.counters.generation_tokens += 1
    if request.first_row_ns is not None:
        _count_first_token(state, request, request.first_row_ns)
    state.cache_full_blocks(request)
    gathered = request.prompt_logprobs
    state.outbox.add_token(request, None if gathered is None else _take_prompt_logprobs(request, gathered))
    ending = ending_of(request)
    if ending is not None:
        state.outbox.finish(request, Finish(ending.state.finish_reason, request.usage(), ending.stop_reason))
        state.end(request, ending.state)


def _take_prompt_logprobs(request: Request, gathered: GatheredLogprobs) -> GatheredLogprobs:
    """They leave with the first token of a request. Raises ProtocolViolation if some are missing."""
    if gathered.num_known != request.num_prompt_tokens - 1:
        raise ProtocolViolation(
            f"request {request.key} got a token and {gathered.num_known} of "
            f"{request.num_prompt_tokens - 1} prompt log-probabilities"
        )
    request.prompt_logprobs = None
    return gathered


def _count_first_token(state: SchedulerState, request: Request, first_row_ns: int) -> None:
    state.counters.num_prefilled += 1
    state.counters.prefill_time_ns += state.now_ns - first_row_ns
    request.first_row_ns = None


class _Logprobs:
    """The log-probabilities of one result, by row; decoded only if there are any."""

    def __init__(self, result: StepResult) -> None:
        rows = np.frombuffer(result.logprob_rows, dtype="<i4").tolist()
        self._index_of = {row: index for index, row in enumerate(rows)}
        if not rows:
            return
        self._sampled = np.frombuffer(result.logprobs, dtype="<f4").tolist()
        top_ids = np.frombuffer(result.top_ids, dtype="<i4")
        top_logprobs = np.frombuffer(result.top_logprobs, dtype="<f4")
        if len(self._sampled) != len(rows) or len(top_ids) % len(rows) or len(top_ids) != len(top_logprobs):
            raise ProtocolViolation(f"the log-probabilities of step {result.step} do not match its {len(rows)} rows")
        self._top_ids = top_ids.reshape(len(rows), -1)
        self._top_logprobs = top_logprobs.reshape(len(rows), -1)

    def of_row(self, row: int, token_id: int, request: Request) -> TokenLogprobs | None:
        """What the request asked for, or None. Raises ProtocolViolation if the result lacks it."""
        wanted = request.sampling.logprobs
        if wanted is None:
            return None
        index = self._index_of.get(row)
        if index is None or self._top_ids.shape[1] < wanted:
            raise ProtocolViolation(
                f"request {request.key} asked for {wanted} log-probabilities, the result lacks them"
            )
        return TokenLogprobs(
            token_id=token_id,
            logprob=self._sampled[index],
            top_ids=self._top_ids[index, :wanted].tolist(),
            top_logprobs=self._top_logprobs[index, :wanted].tolist(),
        )
