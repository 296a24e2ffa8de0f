"""Blocks, rows, and who writes into them (steps in flight, transfers) in a snapshot."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from ..kv_cache.block_pool import BlockPool
from ..mailbox.messages.transfers import LoadBlocks
from .draft_lengths import DraftLengths
from .request import Request
from .row_arrays import RowArrays
from .snapshot_fields import put, take
from .snapshot_requests import RequestTable
from .step_log import PlannedStep, StepLog
from .transfers import Transfers

_KEY_BYTES = 32


class SavedPool(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`BlockPool`. int32 arrays; the keys are joined, in the order of `keyed_blocks`."""

    num_free: int
    ref_cnt: bytes
    next: bytes
    previous: bytes
    keyed_blocks: bytes
    keys: bytes


class SavedRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`RowArrays`: each array as bytes of its own type."""

    run: bytes
    table: bytes
    """All its fields."""
    num_drafts: bytes
    num_with_drafts: int
    num_ahead: bytes
    num_all_ahead: int
    is_constrained: bytes
    num_sent: bytes
    is_prefilling: bytes
    num_prefilling: int
    tenant: bytes
    tail: bytes
    free: list[int]
    removed: list[int]
    num_changes: int


class SavedStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`PlannedStep`."""

    step: int
    runs: bytes | None
    requests: list[int]
    """Numbers."""
    yielding_rows: bytes
    """intp [k]"""
    yielding_runs: bytes
    num_changes: int
    num_tokens: int
    num_drafts: bytes | None
    """int32 [k]"""
    has_successor: bool | None


class SavedSteps(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`StepLog`."""

    steps: list[SavedStep]
    num_in_flight: int
    num_planned: int
    num_steady: int
    num_overlapped: int


class SavedTransfers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`Transfers`."""

    last: int
    requests: dict[int, int | None]
    """Transfer -> number."""
    block_ids: dict[int, list[int]]
    unsent: list[tuple[int, LoadBlocks]]


class SavedStepTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`StepTimes`."""

    ns: bytes
    num_seen: bytes


class SavedDraftLengths(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`DraftLengths`: each array as bytes of its own type."""

    tried: bytes
    accepted: bytes
    used: bytes
    steps_without: bytes
    all_tried: bytes
    all_accepted: bytes
    step_times: SavedStepTimes


def save_draft_lengths(lengths: DraftLengths) -> SavedDraftLengths:
    return take(SavedDraftLengths, lengths, step_times=take(SavedStepTimes, lengths.step_times))


def restore_draft_lengths(saved: SavedDraftLengths, lengths: DraftLengths) -> None:
    put(saved, lengths, without=("step_times",))
    put(saved.step_times, lengths.step_times)


def save_pool(pool: BlockPool) -> SavedPool:
    by_key = pool._block_by_key
    return take(SavedPool, pool, keyed_blocks=array("i", by_key.values()).tobytes(), keys=b"".join(by_key))


def restore_pool(saved: SavedPool, pool: BlockPool) -> None:
    put(saved, pool, without=("keyed_blocks", "keys"))
    for index, block in enumerate(array("i", saved.keyed_blocks)):
        key = saved.keys[_KEY_BYTES * index : _KEY_BYTES * (index + 1)]
        pool._keys[block] = key
        pool._block_by_key[key] = block


def save_rows(rows: RowArrays[Request]) -> SavedRows:
    return take(SavedRows, rows)


def restore_rows(saved: SavedRows, rows: RowArrays[Request]) -> None:
    put(saved, rows)


def save_steps(steps: StepLog, table: RequestTable) -> SavedSteps:
    saved = [
        SavedStep(
            step.step,
            step.runs,
            table.numbers(step.requests),
            step.yielding_rows.tobytes(),
            step.yielding_runs,
            step.num_changes,
            step.num_tokens,
            None if step.num_drafts is None else step.num_drafts.tobytes(),
            step.has_successor,
        )
        for step in steps._steps
    ]
    return take(SavedSteps, steps, steps=saved)


def restore_steps(saved: SavedSteps, steps: StepLog, requests: Sequence[Request]) -> None:
    put(saved, steps, without=("steps",))
    steps._steps = deque(_restored_step(step, requests) for step in saved.steps)


def _restored_step(saved: SavedStep, requests: Sequence[Request]) -> PlannedStep:
    step = PlannedStep(
        saved.step,
        b"",
        [requests[number] for number in saved.requests],
        np.frombuffer(saved.yielding_rows, np.intp),
        saved.yielding_runs,
        saved.num_changes,
        saved.num_tokens,
        None if saved.num_drafts is None else np.frombuffer(saved.num_drafts, np.int32),
    )
    step.runs, step.has_successor = saved.runs, saved.has_successor
    return step


def save_transfers(transfers: Transfers, table: RequestTable) -> SavedTransfers:
    wanting = transfers._requests.items()
    numbers = {transfer: None if request is None else table.number(request) for transfer, request in wanting}
    return take(SavedTransfers, transfers, requests=numbers)


def restore_transfers(saved: SavedTransfers, transfers: Transfers, requests: Sequence[Request]) -> None:
    put(saved, transfers, without=("requests",))
    wanting = saved.requests.items()
    transfers._requests = {n: None if number is None else requests[number] for n, number in wanting}
