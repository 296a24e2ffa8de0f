"""The whole state of a scheduler as bytes: from there another one makes the same plans out of the same events.

A version, then msgpack. What only saves work is not in it and is made again: the order of rows, the heads of deltas,
the keys of requests' blocks (those of the pool are in it), and entries of heaps that mean nothing any more.
"""

from __future__ import annotations

import msgspec

from ..errors import ConfigError
from .limits import SchedulerLimits
from .policy_views import Estimate
from .request import RequestKey
from .snapshot_fields import put, take
from .snapshot_ledgers import SavedBook, SavedLeaks, restore_book, restore_leaks, save_book, save_leaks
from .snapshot_memory import (
    SavedDraftLengths,
    SavedPool,
    SavedRows,
    SavedSteps,
    SavedTransfers,
    restore_draft_lengths,
    restore_pool,
    restore_rows,
    restore_steps,
    restore_transfers,
    save_draft_lengths,
    save_pool,
    save_rows,
    save_steps,
    save_transfers,
)
from .snapshot_outbox import SavedOutbox, restore_outbox, save_outbox
from .snapshot_queues import (
    SavedDeadlines,
    SavedDrainRate,
    SavedGrammars,
    SavedLine,
    SavedTenants,
    restore_grammars,
    restore_lines,
    restore_trial,
    save_grammars,
    save_lines,
    save_trial,
)
from .snapshot_requests import RequestTable, SavedRequest, restore_requests
from .state import SchedulerState

VERSION = 2
"""Raised whenever the state of another one could not be read, or would mean something else."""
_VERSION_BYTES = 2


class SavedState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`SchedulerState`, and what the scheduler has beside it. Requests are given by their numbers."""

    limits: SchedulerLimits
    epoch: int | None
    next_step: int
    now_ns: int
    requests: list[SavedRequest]
    """Live, and such as only a step in flight still has."""
    waiting: list[int]
    paused: list[int]
    running: list[int]
    choices: list[list[int]]
    """Of each live request."""
    lines: dict[str, SavedLine]
    num_waiting_tokens: int
    last_run: int
    num_come: int
    is_fresh_due: bool
    estimate: Estimate
    verdicts: dict[RequestKey, tuple[int, str]]
    orphans: dict[RequestKey, int]
    counters: dict[str, int]
    pool: SavedPool
    rows: SavedRows
    steps: SavedSteps
    transfers: SavedTransfers
    outbox: SavedOutbox
    grammars: SavedGrammars
    deadlines: SavedDeadlines
    tenants: SavedTenants
    trial: list[list[RequestKey]]
    drain_rate: SavedDrainRate
    draft_lengths: SavedDraftLengths
    last_end_ns: int
    ledgers: SavedBook
    leaks: SavedLeaks


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SavedState)
_MADE_OF_REQUESTS = ("waiting", "paused", "running", "choices")
_PARTS = (
    "lines",
    "counters",
    "pool",
    "rows",
    "steps",
    "transfers",
    "outbox",
    "grammars",
    "deadlines",
    "tenants",
    "trial",
    "drain_rate",
    "draft_lengths",
    "ledgers",
    "leaks",
)


def save_state(state: SchedulerState, epoch: int | None, next_step: int) -> bytes:
    """Changes nothing. Between two calls of the scheduler's `step`."""
    table = RequestTable()
    saved = take(
        SavedState,
        state,
        epoch=epoch,
        next_step=next_step,
        waiting=table.numbers(state.waiting.values()),
        paused=table.numbers(state.paused.values()),
        running=table.numbers(state.running.values()),
        choices=[table.numbers(choices.values()) for choices in state._choices.values()],
        lines=save_lines(state.lines, table),
        counters=vars(state.counters),
        pool=save_pool(state.pool),
        rows=save_rows(state.rows),
        steps=save_steps(state.steps, table),
        transfers=save_transfers(state.transfers, table),
        outbox=save_outbox(state.outbox),
        grammars=save_grammars(state.grammars, table),
        deadlines=take(SavedDeadlines, state.deadlines),
        tenants=take(SavedTenants, state.tenants),
        trial=save_trial(state.trial),
        drain_rate=take(SavedDrainRate, state.drain_rate),
        draft_lengths=save_draft_lengths(state.draft_lengths),
        ledgers=save_book(state.ledgers),
        leaks=save_leaks(state.leaks),
        requests=table.saved(),  # last: now all that are referred to have a number
    )
    return VERSION.to_bytes(_VERSION_BYTES, "little") + _encoder.encode(saved)


def restore_state(data: bytes, state: SchedulerState) -> tuple[int | None, int]:
    """Into the state of a new scheduler with the same limits; (epoch, next step).

    Raises ConfigError for a snapshot of another version, one that cannot be read, or one with other limits.
    """
    saved = _read(data)
    if saved.limits != state.limits:
        raise ConfigError("the snapshot is of a scheduler with other limits", advice="restore it with its own limits")
    requests = restore_requests(saved.requests, state.rows)
    put(saved, state, without=("limits", "epoch", "next_step", "requests", *_MADE_OF_REQUESTS, *_PARTS))
    state.waiting = {requests[number].key: requests[number] for number in saved.waiting}
    state.paused = {requests[number].key: requests[number] for number in saved.paused}
    for number in saved.running:
        request = requests[number]
        assert request.run is not None, "a running request has a run"
        state.running[request.run] = request
        state.constrained.enter(request)
    for numbers in saved.choices:
        for number in numbers:
            request_id, choice = requests[number].key
            state._choices.setdefault(request_id, {})[choice] = requests[number]
    restore_lines(saved.lines, state.lines, requests)
    vars(state.counters).update(saved.counters)
    restore_pool(saved.pool, state.pool)
    restore_rows(saved.rows, state.rows)
    restore_steps(saved.steps, state.steps, requests)
    restore_transfers(saved.transfers, state.transfers, requests)
    restore_outbox(saved.outbox, state.outbox)
    restore_grammars(saved.grammars, state.grammars, requests)
    put(saved.deadlines, state.deadlines)
    put(saved.tenants, state.tenants)
    restore_trial(saved.trial, state.trial)
    put(saved.drain_rate, state.drain_rate)
    restore_draft_lengths(saved.draft_lengths, state.draft_lengths)
    restore_book(saved.ledgers, state.ledgers)
    restore_leaks(saved.leaks, state.leaks)
    return saved.epoch, saved.next_step


def _read(data: bytes) -> SavedState:
    version = int.from_bytes(data[:_VERSION_BYTES], "little")
    if version != VERSION:
        raise ConfigError(
            f"the snapshot is of version {version}, this Callboard reads version {VERSION}",
            advice="replay it with the version that wrote it",
        )
    try:
        return _decoder.decode(memoryview(data)[_VERSION_BYTES:])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the snapshot cannot be read: {error}", advice="it is damaged") from error
