"""The invariants that tie requests, rows, blocks, orphans and the trial together."""

from __future__ import annotations

from .request import RequestState
from .state import SchedulerState


def check_integrity(state: SchedulerState) -> list[int]:
    """Assert them all; O(blocks + requests). Returns the blocks that had leaked: they are given back and counted."""
    _check_running(state)
    _check_waiting(state)
    _check_orphans(state)
    _check_trial(state)
    state.rows.check_integrity([request.row for request in state.running.values() if request.row is not None])
    leaked = state.pool.check_integrity(request.block_ids for request in state.requests())
    state.counters.num_leaks += len(leaked)
    return leaked


def _check_running(state: SchedulerState) -> None:
    for run, request in state.running.items():
        assert state.find(*request.key) is request, f"{request.key} runs but is not known"
        assert request.run == run and request.state is RequestState.RUNNING, f"{request.key} is not running"
        num_places = len(request.block_ids) * state.limits.block_size
        assert request.num_computed_tokens <= num_places, f"{request.key} computes tokens without a block"
        assert request.num_uncomputed_tokens >= 0, f"{request.key} has computed tokens that nobody knows"


def _check_waiting(state: SchedulerState) -> None:
    for key, request in state.waiting.items():
        assert state.find(*key) is request and request.run is None, f"{key} waits and runs"
        assert not request.block_ids and not request.num_in_flight, f"{key} waits but holds blocks"
        gathered = request.prompt_logprobs
        assert gathered is None or not gathered.num_known, f"{key} waits but keeps log-probabilities of its prompt"
    first = state.policy.first()
    assert (first is None) == (not state.waiting), "the policy and the waiting differ"
    assert first is None or state.waiting.get(first.key) is first, f"{first.key} is next but does not wait"
    assert state.num_waiting_tokens == sum(request.num_prompt_tokens for request in state.waiting.values())


def _check_orphans(state: SchedulerState) -> None:
    without = {request.key for request in state.requests() if request.tokenizer is None}
    assert without == state.orphans.keys(), f"without a tokenizer: {without}, orphans: {list(state.orphans)}"
    deadlines = list(state.orphans.values())
    assert deadlines == sorted(deadlines), "the orphans do not stand in the order of their deadlines"


def _check_trial(state: SchedulerState) -> None:
    groups = list(state.trial.groups())
    suspects = [key for group in groups for key in group]
    assert all(groups), "a trial has an empty group"
    assert len(set(suspects)) == len(suspects), "a suspect is in two groups"
    assert all(state.find(*key) is not None for key in suspects), "a suspect has ended"
    assert not (state.is_fresh_due and state.running), "something runs though a step failed"
    assert not groups or state.is_fresh_due or state.steps.num_in_flight <= 1, "a trial runs at depth 1"
