"""The invariants that tie requests, rows, blocks, orphans and the trial together."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from .leak_ledger import Leak
from .request import RequestState
from .state import SchedulerState


def check_integrity(state: SchedulerState) -> list[Leak]:
    """Assert them all; O(blocks + requests). Returns the blocks and rows that had leaked: they are given back and
    counted."""
    _check_running(state)
    _check_waiting(state)
    _check_orphans(state)
    _check_trial(state)
    lost_rows = state.rows.check_integrity([r.row for r in state.running.values() if r.row is not None])
    state.tenants.check_integrity(Counter(r.tenant for r in state.requests() if r.key not in state.paused))
    loading = state.transfers.blocks()
    lost_blocks = state.pool.check_integrity(chain((r.block_ids for r in state.requests()), loading.values()))
    state.ledgers.check_integrity(request.key for request in state.requests())
    leaks = state.leaks.name(lost_blocks, lost_rows, state.requests(), loading) if lost_blocks or lost_rows else []
    state.counters.num_leaks += len(leaks)
    return leaks


def _check_running(state: SchedulerState) -> None:
    for run, request in state.running.items():
        assert state.find(*request.key) is request, f"{request.key} runs but is not known"
        assert request.run == run and request.state is RequestState.RUNNING, f"{request.key} is not running"
        row = request.row
        assert row is not None and state.rows.requests[row] is request and state.rows.run[row] == run
        num_places = len(request.block_ids) * state.limits.block_size
        assert state.rows.num_places[row] == num_places, f"{request.key} has other blocks than counted"
        assert state.rows.tail_at[row] == request.num_tokens % state.limits.block_size, (
            f"{request.key} has a wrong tail"
        )
        assert request.num_computed_tokens <= num_places, f"{request.key} computes tokens without a block"
        has_guesses = request.num_uncomputed_tokens < 0
        assert not has_guesses or request.num_in_flight, f"{request.key} has computed tokens that nobody knows"


def _check_waiting(state: SchedulerState) -> None:
    for key, request in state.waiting.items():
        assert state.find(*key) is request and request.run is None, f"{key} waits and runs"
        num_places = len(request.block_ids) * state.limits.block_size
        assert num_places == request.num_loaded_tokens, f"{key} waits but holds blocks that were not loaded for it"
        is_loading = request.state is RequestState.WAITING_FOR_REMOTE_KV
        assert is_loading == (request.transfer is not None), f"{key} waits for a transfer that there is not"
        is_held_back = is_loading or request.state is RequestState.WAITING_FOR_GRAMMAR
        assert is_held_back == (key not in state.lines), f"{key} is {request.state}, but in line or not"
        gathered = request.prompt_logprobs
        assert gathered is None or not gathered.num_known, f"{key} waits but keeps log-probabilities of its prompt"
    assert all(state.waiting.get(request.key) is request for request in state.lines), "one in line does not wait"
    for key, request in state.paused.items():
        assert state.find(*key) is request and request.run is None and not request.block_ids, f"{key} is not paused"
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
