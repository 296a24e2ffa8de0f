"""Steps that failed and workers that died: what ran goes back to waiting, and who is to blame is found out."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ProtocolViolation
from ..mailbox.messages.requests import Finish
from ..mailbox.messages.steps import StepOutcome, StepResult
from .ledger import PreemptionCause
from .loading import lose_loaded
from .request import Request, RequestState
from .state import SchedulerState

MAX_DEATHS = 2
"""A request that is in flight at so many deaths of the worker, with no token of it between, is a suspect."""


def fail_step(state: SchedulerState, result: StepResult) -> None:
    """A step raised: all that ran is rolled back, and the next plan, once nothing is in flight, is a fresh one.

    The only request of the failed plan ends with the error. Several, or what is left of several, are tried. A request
    that was preempted since the plan was made is as suspect as the others.
    """
    requests = state.steps.fail(result.step)
    state.counters.num_failed_steps += 1
    roll_back(state, "step_failed")
    state.is_fresh_due = True
    suspects = _live(state, requests)
    if len(requests) > 1:
        state.trial.split([request.key for request in suspects])
    elif suspects:
        _convict(state, suspects[0], f"the step that computed this request failed: {result.error}")


def void_step(state: SchedulerState, result: StepResult) -> None:
    """A step behind a failed one was not run: it was rolled back when the failed one was."""
    state.steps.void(result.step)


def check_outcome(state: SchedulerState, result: StepResult) -> None:
    """Raises ProtocolViolation if a step behind a failed one was run, or another one was not."""
    if (result.outcome is StepOutcome.VOID) != state.is_fresh_due:
        expected = "a step before it failed" if state.is_fresh_due else "no step before it failed"
        raise ProtocolViolation(f"result of step {result.step} is {result.outcome.name}, but {expected}")


def lose_worker(state: SchedulerState) -> None:
    """The epoch is over: all K/V are gone, what ran is rolled back, what was in flight is one death older.

    One suspect ends with an error. Several cannot be told apart by their deaths, and all but one are innocent as a
    rule, so they are not all ended but tried one by one: whoever is in flight alone at the next death is the only
    suspect of that death, and ends. It costs one more death, and spares the others.
    """
    requests = _live(state, state.steps.requests_in_flight())
    state.steps.forget()
    roll_back(state, "worker")
    state.is_fresh_due = False
    for request in requests:
        request.num_deaths += 1
    suspects = [request for request in requests if request.num_deaths >= MAX_DEATHS]
    if len(suspects) == 1:
        message = (
            "the request was in the plans in flight at two deaths of the worker or more, with no token of it "
            "between, and is not tried again"
        )
        _convict(state, suspects[0], message)
    elif suspects:
        state.trial.isolate([request.key for request in suspects])


def roll_back(state: SchedulerState, cause: PreemptionCause) -> None:
    """What ran goes back to the head of waiting in its order; no block can be hit, and the worker has no rows."""
    for request in reversed(list(state.running.values())):
        state.preempt(request, cause)
    lose_loaded(state)
    state.pool.forget_keys()
    state.rows.forget_removed()


def _live(state: SchedulerState, requests: Iterable[Request]) -> list[Request]:
    """Those that have not ended, each once."""
    return list({request.key: request for request in requests if state.find(*request.key) is request}.values())


def _convict(state: SchedulerState, request: Request, message: str) -> None:
    """End the culprit. Its tokenizer may be dead, or die before it hears of it: a resume is not to try it again."""
    state.outbox.finish(request, Finish(RequestState.ERROR.finish_reason, request.usage(), message=message))
    state.end(request, RequestState.ERROR)
    state.verdicts.pop(request.key, None)
    state.verdicts[request.key] = (state.now_ns + round(state.limits.resume_grace_s * 1e9), message)
    state.counters.num_poisoned += 1
    state.trial.close()
